"""Exceptions of many ranks, brought together where they are alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade, is_size_complaint, name_known
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame
from whystuck.evidence.live import PythonException

# What one line of code says of different data: numbers, addresses, and what stands in quotes.
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+|\d+(?:\.\d+)?|[^\s/]{0,100}/\S*")
_ORIGINAL = "Original Traceback (most recent call last):"
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
# A traceback after which a process wrote this much was caught: it did not end the process.
_SURVIVED_NS = 30_000_000_000
_CHAINED_ROWS = 4000
_LOGS = {"log", "launcher log"}


@dataclass(frozen=True)
class Alike:
    """Exceptions that one line of code raised on some ranks, for one reason.

    Attributes:
        items: The exceptions, in the order of their ranks; ranks that nobody knows come first.
        type: Their type, without its module.
        message: What the first of them says, in one line.
    """

    items: tuple[PythonException, ...]
    type: str
    message: str

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are known."""
        return tuple(sorted({item.rank for item in self.items} - {-1}))

    @property
    def nameless(self) -> int:
        """How many of them are of ranks that nothing tells."""
        return sum(item.rank < 0 for item in self.items)


def read_failure(item: PythonException) -> tuple[str, str]:
    """Return type and message of what went wrong; of an error in a worker, what the worker met."""
    if _ORIGINAL in item.message:
        for line in reversed(item.message.splitlines()):
            if line and not line[0].isspace() and (found := _RAISED.match(line)):
                return found[1].rpartition(".")[2], found[2] or ""
    return item.type.rpartition(".")[2], item.message.partition("\n")[0].strip()


def group_alike(items: Iterable[PythonException]) -> tuple[Alike, ...]:
    """Bring exceptions together by type, message without its data, and the user's line."""
    groups: dict[tuple[str, str, str], list[PythonException]] = {}
    placeless: dict[tuple[str, str], list[PythonException]] = {}
    for item in items:
        kind, message = read_failure(item)
        frame = find_user_frame(item.frames)
        template = _VARYING.sub("*", message)
        if frame is None:
            placeless.setdefault((kind, template), []).append(item)
        else:
            place = f"{frame.file}:{frame.line}"
            groups.setdefault((kind, template, place), []).append(item)
    places: dict[tuple[str, str], list[str]] = {}
    for kind, template, place in groups:
        places.setdefault((kind, template), []).append(place)
    for (kind, template), found in placeless.items():
        # Without its frames, it can be any that says the same, as long as there is only one.
        same = places.get((kind, template), ())
        key = kind, template, same[0] if len(same) == 1 else ""
        groups.setdefault(key, []).extend(found)
    return tuple(_make(found) for found in groups.values())


def _make(items: Sequence[PythonException]) -> Alike:
    ordered = tuple(sorted(items, key=lambda item: (item.rank, item.artifact, item.row)))
    kind, message = read_failure(ordered[0])
    return Alike(ordered, kind, message)


def select_own(items: Iterable[PythonException]) -> tuple[PythonException, ...]:
    """Select what ended each rank for a reason of its own.

    Left out are exceptions that a rank survived, those that say that a peer is gone or late, and
    those of which the rule of another code tells.
    """
    by_rank: dict[int, list[PythonException]] = {}
    for item in items:
        if item.is_main_thread and not item.is_caught:
            by_rank.setdefault(item.rank, []).append(item)
    own: list[PythonException] = []
    for rank, found in by_rank.items():
        live = [item for item in found if item.source not in _LOGS]
        # What the process itself recorded as uncaught ended it, whatever its log holds beside.
        chosen = live or found
        ends = [one for item in chosen if (one := _find_own(item)) is not None]
        ends = _drop_survived(ends, chosen)
        own += ends if rank < 0 else ends[-1:]
    return tuple(own)


def _find_own(item: PythonException) -> PythonException | None:
    """Return what a rank raised for itself: the exception, or what was raised before it."""
    if is_own(item):
        return item
    if name_known(item) not in {"", codes.PEER_LOST, codes.RENDEZVOUS_FAILED}:
        return None
    return next((one for one in reversed(item.origins) if is_own(one)), None)


def is_own(item: PythonException) -> bool:
    """Tell whether an exception is a failure that no rule but those of exceptions tells of."""
    return not (is_cascade(item) or is_size_complaint(item) or name_known(item))


def _drop_survived(
    ends: list[PythonException], found: list[PythonException]
) -> list[PythonException]:
    """Leave out what a rank survived: it met another exception much later."""
    last = found[-1]
    return [item for item in ends if item.rank < 0 or not _went_on(item, last)]


def _went_on(item: PythonException, last: PythonException) -> bool:
    if item.time and last.time and item.time.clock == last.time.clock:
        return last.time.ns - item.time.ns > _SURVIVED_NS
    return item.artifact == last.artifact and last.row - item.row > _CHAINED_ROWS
