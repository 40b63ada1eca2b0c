"""Locks that people name in comments behind the frames of a thread: what it wants, and what it has.

Such as `# waits for self.b, holds self.a` and `# with self.a`; of a thread that waits inside of a
`with`, the one of an outer frame is held.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from whystuck.evidence.live import ThreadStack

_NAME = r"(?:lock )?[`'\"]?(?P<NAME>[A-Za-z_][\w.]{0,120}\w)"
_WORDS = re.compile(
    r"\b(?:(?P<wants>wait(?:s|ing)? (?:for|on)|wants?|wanting|needs?|blocked (?:on|in|at)"
    r"|tak(?:es|ing)|acquir(?:es|ing)|parked on)|(?P<holds>hold(?:s|ing)?|has|owns?|owning|keeps?"
    rf"|took|acquired)|(?P<with>with)) (?:the )?{_NAME.replace('NAME', 'name')}"
    rf"|{_NAME.replace('NAME', 'called')}\.acquire\b",
)
_IS_LOCK = re.compile(r"lock|mutex|mtx|sem|cond|guard|latch|(?:^|[._])(?:mu|cv)\b", re.IGNORECASE)
_DENIED = re.compile(r"\b(?:not|no longer|released?|never|without|\w{1,8}n't)\b", re.IGNORECASE)


@dataclass(frozen=True)
class NotedLocks:
    """The locks of a thread: the one that it waits for, and those that it holds."""

    wanted: str
    held: frozenset[str]


def read_noted_locks(thread: ThreadStack, inner: int) -> NotedLocks:
    """Read the comments at the frames of a thread.

    Args:
        thread: The thread.
        inner: The number of its innermost frame of the user, where it waits.
    """
    wanted, held = "", set[str]()
    blocks: list[tuple[int, str]] = []
    for place, note in sorted(thread.notes, reverse=True):
        if _DENIED.search(note):
            continue
        for kind, name in _list_locks(note):
            if kind == "wants":
                wanted = name
            elif kind == "holds":
                held.add(name)
            else:
                blocks.append((place, name))
    # The innermost one is waited for, unless it stands where nothing waits.
    if not wanted and blocks and (len(blocks) > 1 or blocks[-1][0] <= inner):
        wanted = blocks.pop()[1]
    return NotedLocks(wanted, frozenset(held | {name for _, name in blocks}))


def _list_locks(note: str) -> Iterator[tuple[str, str]]:
    for match in _WORDS.finditer(note):
        name = match["called"] or match["name"]
        if _IS_LOCK.search(name):
            kinds = (one for one in ("wants", "holds") if match[one])
            yield next(kinds, "with"), name


def is_same_lock(one: str, other: str) -> bool:
    """Tell whether two names may be of one lock: its owner calls it `self._lock`."""
    first, second = (name.removeprefix("self.").split(".") for name in (one, other))
    shared = min(len(first), len(second))
    return first[-shared:] == second[-shared:]
