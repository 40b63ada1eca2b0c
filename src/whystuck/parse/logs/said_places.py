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
_DENIED = re.compile(
    r"\b(?:not|but|except|unlike|some|may|might|maybe|\w{1,8}n't)\b", re.IGNORECASE
)
# One rank and its pod: `worker-0 = rank 1`, `rank 1 runs in trainer-worker-0`.
_PLACE = r"(?P<NAME>(?=[\w.]{0,40}[\d-])[A-Za-z][\w.-]{1,62}|master|chief|launcher)"
_OWN_RANK = r"(?<![a-z_])(?<!local )(?<!node )rank[ =:#]{0,2}(?P<NAME>\d{1,7})(?![\w.]|\s?-\s?\d)"
_IS_RANK = re.compile(
    rf"(?:(?<![\w./-])|(?<=pod/)){_PLACE.replace('NAME', 'host')}(?: pod)?[`'\"]?"
    r"(?: ?(?:=|->|:|\(|,) ?| (?:is|has|runs|was|holds) )(?:the |global ){0,2}"
    rf"{_OWN_RANK.replace('NAME', 'rank')}"
    rf"|{_OWN_RANK.replace('NAME', 'first')}(?: ?(?:=|->|:|\(|@) ?| (?:is|runs|sits|lives|on|in) )"
    r"(?:(?:is|on|in|the|pod|host|node|container) ){0,3}[`'\"]?"
    rf"{_PLACE.replace('NAME', 'where')}",
    re.IGNORECASE,
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
    told = [(host, first, last) for host, first, last in _HAS.findall(text)]
    if not told:
        told = [(host, first, last) for first, last, host in _ON.findall(text)]
    found = (HostRanks(host, int(first), int(last)) for host, first, last in told)
    return tuple(one for one in found if 0 < one.last - one.first < _MOST_ON_HOST)


def list_pod_ranks(text: str) -> tuple[tuple[str, int], ...]:
    """Return the pods, or hosts, of which a sentence tells the one rank: ``worker-0 = rank 1``."""
    if _DENIED.search(text):
        return ()
    matches = _IS_RANK.finditer(text)
    found = ((one["host"] or one["where"], one["rank"] or one["first"]) for one in matches)
    return tuple((host.lower(), int(rank)) for host, rank in found if int(rank) <= MAX_RANK)


def is_said_pod(said: str, node: str) -> bool:
    """Tell whether people may call a pod or host so: `worker-0` is short for `tts-worker-0`."""
    return said == node or node.endswith(f"-{said}") or f"-{said}-" in node


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
