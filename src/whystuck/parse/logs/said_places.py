"""Where people say that ranks run: the ranks of a host, of listed processes, of a described pod."""

from __future__ import annotations

import re
from typing import NamedTuple

from whystuck.evidence.ranks import MAX_RANK

# A host has no more ranks than this; what is longer is no host.
_MOST_ON_HOST = 64
# So far below its name stands the environment in the description of a pod.
_MOST_BELOW = 200

_RANKS = r"ranks? ?(\d{1,7}) ?(?:-|\u2013|\.{2,3}|to|through) ?(\d{1,7})(?![\w.])"
_HOST = r"((?=[\w.]{0,40}[\d-])[A-Za-z][\w.-]{1,62})"
_LINK = r"[ ,:=(>-]{1,4}"
_HAS = re.compile(
    rf"(?<![\w./-]){_HOST}{_LINK}(?:(?:has|have|holds|runs|hosts|is|are|with|the|global) ){{0,3}}"
    rf"{_RANKS}",
    re.IGNORECASE,
)
_ON = re.compile(
    rf"\b{_RANKS}{_LINK}(?:(?:are|is|run|live|sit|all|on|at|in|node|host|machine) ){{0,4}}{_HOST}",
    re.IGNORECASE,
)
_PLACED = re.compile(
    rf"\b{_RANKS} (?:(?:are|is|all|run|live|sit) ){{0,2}}(?:on|at|in) ", re.IGNORECASE
)
# The word is not said again: `ranks 0-7 on h1, 8-15 on h2`, `h1 has ranks 0-7, h2 8-15`.
_NUMBERS = r"(\d{1,7}) ?(?:-|\u2013|\.{2,3}|to|through) ?(\d{1,7})(?![\w.])"
_MORE_ON = re.compile(rf"(?:[,;/]|\band) {{0,2}}{_NUMBERS} (?:(?:are|run|on|at|in) ){{1,3}}{_HOST}")
_MORE_HAS = re.compile(rf"(?:[,;/]|\band) {{0,2}}{_HOST}(?: has| have| holds| runs)?:? {_NUMBERS}")
_DENIED = re.compile(
    r"\b(?:not|but|except|unlike|some|may|might|maybe|\w{1,8}n't)\b", re.IGNORECASE
)
_PROCESSES = re.compile(r"\b(?:pids?|process(?:es)?|stacks?|dumps?|traces?)\b", re.IGNORECASE)
_IN_ORDER = re.compile(
    r"\b(?:rank order|order of (?:the |their )?ranks?|by ranks?\b"
    r"|ranks? ?(?P<list>\d(?:[\d ,&.\u2013-]|and){0,200}\d)(?:,|\))? {0,2}"
    r"(?:in (?:that|this|the same|the) order|in order|respectively))",
    re.IGNORECASE,
)
_BY_RANK = re.compile(r"\b(?:sorted|ordered|listed|numbered|in order)\b", re.IGNORECASE)

_POD = re.compile(r"^Name: {2,40}([a-z0-9][\w.-]{0,200})$")
_POD_RANK = re.compile(r"^\s{2,12}RANK: {1,40}(\d{1,7})$")
_ONE_EACH = re.compile(r"--nproc[_-]per[_-]node[= ]1(?!\S)")
_NODE_RANK = re.compile(r"--node[_-]rank[= ](\d{1,7})(?!\S)")


class HostRanks(NamedTuple):
    """The ranks of a host, from the first to the last, in the order of its devices."""

    host: str
    first: int
    last: int


def list_host_ranks(text: str) -> tuple[HostRanks, ...]:
    """Return the ranks of each host of which a sentence tells them: ``n12 has ranks 8-15``."""
    if _DENIED.search(text):
        return ()
    if _has_host_first(text):
        told = [*_HAS.findall(text), *_MORE_HAS.findall(text)]
    else:
        on = _ON.findall(text)
        told = [(host, first, last) for first, last, host in on]
        told += [(host, *numbers) for *numbers, host in _MORE_ON.findall(text) if on]
    found = (HostRanks(host, int(first), int(last)) for host, first, last in told)
    return tuple(one for one in found if 0 < one.last - one.first < _MOST_ON_HOST)


def _has_host_first(text: str) -> bool:
    """Tell whether a sentence names each host before its ranks.

    In ``ranks 0-7 on h1, ranks 8-15 on h2``, a host stands before the ranks of the next one.
    """
    has, on = _HAS.search(text), _ON.search(text)
    if has is None or on is None:
        return has is not None
    is_listed = "," in has[0].removeprefix(has[1])[:2]
    return not (is_listed and _PLACED.search(text)) and has.start() <= on.start()


def tells_order(small: str) -> bool:
    """Tell whether a line, in small letters, may say in which order processes stand."""
    return "rank" in small and any(word in small for word in ("order", "sorted", "respect"))


def find_order(text: str) -> str | None:
    """Return the ranks that processes have in the order in which they stand in a text.

    Returns:
        The list as it is written; empty where all processes stand in the order of ranks, and None
        where the text does not say so.
    """
    match = _IN_ORDER.search(text)
    if match is None or _DENIED.search(text) or not _PROCESSES.search(text):
        return None
    if match["list"]:
        return match["list"]
    is_sorted = not match[0].lower().startswith("by ") or _BY_RANK.search(text)
    return "" if is_sorted else None


class PodRanks:
    """Follows what ``kubectl describe pod`` prints, for the rank of each pod."""

    def __init__(self) -> None:
        self._pod, self._row = "", 0

    def read(self, text: str, row: int) -> tuple[str, int] | None:
        """Take a line; return a pod and its rank where the line tells it."""
        if text.startswith("Name: ") and (named := _POD.match(text)):
            self._pod, self._row = named[1], row
        elif self._pod and 0 < row - self._row <= _MOST_BELOW:
            rank = _POD_RANK.match(text)
            if rank is None and "proc" in text and _ONE_EACH.search(text):
                # Where a host has one process, that is the rank.
                rank = _NODE_RANK.search(text)
            if rank is not None and int(rank[1]) <= MAX_RANK:
                return self._pod, int(rank[1])
        return None
