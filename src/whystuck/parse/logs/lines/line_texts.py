"""What a sampled line tells by its text alone: its kind, progress, and processes of ranks."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from whystuck.parse.logs.lines.line_kinds import name_kind
from whystuck.parse.logs.owners.process_words import list_rank_pids, tells_of_processes
from whystuck.parse.logs.owners.said_groups import list_groups
from whystuck.parse.logs.owners.said_places import SaidText, read_said

_WORLD = re.compile(
    r"\b(?:WORLD_SIZE|world[_ ]size)['\"]?\s?[=: ]\s?['\"]?(\d{1,7})\b", re.IGNORECASE
)
# A list behind a name, or a list of lists.
_LISTS = ("=[", " [", "[[", "=(", " (", "={", " {")
_PID = re.compile(r"(?:started|running|rank \d+)\b.{0,40}\bpid[ =:]+(\d{1,7})\b", re.IGNORECASE)
_PROGRESS = re.compile(
    r"\b(?:step|iteration|iter|epoch|global_step)\b(?:.{0,3}|[=:]\s{1,9})\d"
    r"|\bloss\b['\"]?\s?[=:]?\s{0,3}\d|\d%\|"
    r"|\bep \d{1,6}[ :|,/-]{1,3}(?:start|done|end|begin|finish|loss|it|step|\d)",
    re.IGNORECASE,
)
# It begins with one of these, or with digits before the last, or with `global_`.
_PROGRESS_WORD = re.compile(r"step|loss|iter|epoch|%\||(?<![a-z])ep \d")
_BEFORE_STEP = "global_"
# A loss that is a number, in a line that has nothing else of the kind that is none.
_FINITE = re.compile(
    r"(?:\b|(?<=local_)|(?<=train_))loss\b['\"]?\s?[=:]?\s{0,3}[-+]?\d", re.IGNORECASE
)
_NO_NUMBER = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)


class ToldText(NamedTuple):
    """What a sampled line tells by its text alone."""

    kind: str
    world_size: int
    pid: int | None
    is_progress: bool
    is_finite: bool
    rank_pids: tuple[tuple[int, int, bool], ...]
    said: SaidText
    groups: tuple[tuple[str, frozenset[int]], ...] = ()


# The logs of ranks hold much the same lines, and the head and the tail of a short log are one.
@lru_cache(maxsize=512)
def read_text(text: str, is_kernel: bool, is_agent: bool) -> ToldText:  # noqa: FBT001 - a key
    """Read a line; the arguments are what its prefixes tell of who wrote it."""
    # To find a word takes a tenth of the time of a pattern, and most lines have none of these.
    small = text.lower()
    world = _WORLD.search(text) if "world" in small else None
    pid = _PID.search(text) if "pid" in small else None
    is_progress, is_finite = _read_progress(text, small)
    kind = "kernel" if is_kernel and not is_progress else name_kind(text, is_agent=is_agent)
    return ToldText(
        kind,
        int(world[1]) if world else 0,
        int(pid[1]) if pid else None,
        is_progress,
        is_finite,
        tuple(list_rank_pids(text)) if tells_of_processes(small) else (),
        read_said(text, small),
        tuple(list_groups(text)) if _may_list(text) else (),
    )


def _may_list(text: str) -> bool:
    """Tell whether a line has a list of numbers, with what is called a group or has a name."""
    if "rank" in text and " and " in text:
        return True  # a sentence about ranks and groups
    return "," in text and any(mark in text for mark in _LISTS)


def _read_progress(text: str, small: str) -> tuple[bool, bool]:
    """Tell whether a line shows progress, and whether it has a loss that is a number.

    Most of a line is no such word: a pattern is tried only where one stands.
    """
    if len(small) != len(text):
        # Few letters take more room when they are small.
        is_progress = _PROGRESS.search(text) is not None
        is_finite = is_progress and _FINITE.search(text) is not None
        return is_progress, is_finite and _NO_NUMBER.search(text) is None
    word = _PROGRESS_WORD.search(small)
    while word is not None and not _shows_progress(text, small, word.start()):
        word = _PROGRESS_WORD.search(small, word.end())
    is_finite = word is not None and _matches_at(_FINITE, text, small, "loss")
    is_finite = is_finite and not _matches_at(_NO_NUMBER, text, small, "nan")
    return word is not None, is_finite and not _matches_at(_NO_NUMBER, text, small, "inf")


def _shows_progress(text: str, small: str, place: int) -> bool:
    """Tell whether a word of progress at a place is one: a number belongs to it."""
    if _PROGRESS.match(text, place):
        return True
    if small[place] == "%":
        return place > 0 and text[place - 1].isdecimal()
    begin = place - len(_BEFORE_STEP)
    is_long = begin >= 0 and small.startswith(_BEFORE_STEP, begin)
    return is_long and _PROGRESS.match(text, begin) is not None


def _matches_at(pattern: re.Pattern[str], text: str, small: str, word: str) -> bool:
    """Tell whether a pattern that begins with a word matches anywhere in a text."""
    place = small.find(word)
    while place >= 0 and not pattern.match(text, place):
        place = small.find(word, place + 1)
    return place >= 0
