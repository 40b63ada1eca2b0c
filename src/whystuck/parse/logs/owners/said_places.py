"""Where people say that ranks run: the ranks of a host, of listed processes, of a described pod."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.owners.host_rank_lines import find_seat

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
# A host has no more ranks than this; what is longer is no host.
_MOST_ON_HOST = 64
_MOST_HOSTS = 1024
_MOST_SAID = 20_000
_MOST_GROUPS = 4096
# Words so near before it are about what is said.
_NEAR = 16
# So far below its name stands the environment in the description of a pod.
_MOST_BELOW = 200

_RANKS = r"ranks? ?(\d{1,7}) ?(?:-|\u2013|\.{2,3}|to|through) ?(\d{1,7})(?![\w.])"
_HOST = r"((?=[\w.]{0,40}[\d-])[A-Za-z](?:[\w-]|\.(?!\.)){1,62})"
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
# Hosts that are counted, with one rank each: `gn01..gn04 => rank 0..3`, `gn[01-04] = ranks 0-3`.
_SERIES = re.compile(
    r"(?<![\w./-])([A-Za-z][A-Za-z_-]{0,40})\[?(\d{1,5}) ?(?:\.{2,3}|-|\u2013|to) ?(?:\1)?"
    r"(\d{1,5})\]? ?(?:=>|->|=|is|are|:|has|have) ?(?:(?:the|task|tasks|global) ){0,2}"
    rf"{_RANKS}",
    re.IGNORECASE,
)
# The device of a rank: `rank 6: device 6 (AMD Instinct MI250X) pci 0000:de:00.0`.
_BUS = re.compile(
    r"(?<![a-z_])rank[ =:]{0,2}(?P<rank>\d{1,7})\b.{0,100}?"
    r"\b(?P<bus>(?:[0-9a-f]{4}|[0-9a-f]{8}):[0-9a-f]{2}:[0-9a-f]{2}\.\d)\b",
    re.IGNORECASE,
)
# The same in a line of which a prefix tells the rank.
_OWN_BUS = re.compile(
    r"\b(?:pci|bus|bdf|device|gpu)\b.{0,40}?"
    r"\b((?:[0-9a-f]{4}|[0-9a-f]{8}):[0-9a-f]{2}:[0-9a-f]{2}\.\d)\b",
    re.IGNORECASE,
)
_ANY_RANK = re.compile(r"\brank", re.IGNORECASE)
# The pods of a job of Kubernetes: `worker-N is RANK N+1`, `worker-0 = rank 1`.
_WORKER = re.compile(
    r"\bworkers?-?(?P<n>\d{1,5}|[NniX]|\{[a-z]\}) ?(?:=>|->|==?|is|has|:) ?(?:the |global ){0,2}"
    r"rank ?=? ?(?:(?P<rank>\d{1,7})|[NniX]|\{[a-z]\})(?: ?\+ ?(?P<more>\d{1,3}))?(?![\w.])",
    re.IGNORECASE,
)
_PLACED = re.compile(
    rf"\b{_RANKS} (?:(?:are|is|all|run|live|sit) ){{0,2}}(?:on|at|in) ", re.IGNORECASE
)
# The word is not said again: `ranks 0-7 on h1, 8-15 on h2`, `h1 has ranks 0-7, h2 8-15`.
_NUMBERS = r"(\d{1,7}) ?(?:-|\u2013|\.{2,3}|to|through) ?(\d{1,7})(?![\w.])"
_MORE_ON = re.compile(rf"(?:[,;/]|\band) {{0,2}}{_NUMBERS} (?:(?:are|run|on|at|in) ){{1,3}}{_HOST}")
_MORE_HAS = re.compile(rf"(?:[,;/]|\band) {{0,2}}{_HOST}(?: has| have| holds| runs)?:? {_NUMBERS}")
# Ranks one by one, as a host of few has them: `box2 (ranks 2 and 3)`, `ranks 0, 1 run on box1`.
_LISTED = (
    r"ranks? ?(?P<NAME>\d{1,7}(?: ?[,/&+] ?(?:and )?\d{1,7}| and \d{1,7}){1,63})"
    r"(?! ?[-.,/&+\u2013]? ?\d| (?:and|to|through) \d|[\w.]\w)"
)
_HOST_LIST = re.compile(
    rf"(?<![\w./-]){_HOST.replace('(', '(?P<host>', 1)}"
    r"(?: ?[(=] ?| (?:has|have|holds|runs|hosts|with) )(?:(?:the|global) ){0,2}"
    rf"{_LISTED.replace('NAME', 'own')}"
    rf"|\b{_LISTED.replace('NAME', 'ranks')}"
    r"(?: ?[(@] ?|,? (?:(?:are|all|run|live|sit|both) ){0,2}(?:on|at) )"
    r"(?:(?:node|host|machine) )?"
    rf"{_HOST.replace('(', '(?P<where>', 1)}",
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
_PROCESSES = re.compile(
    r"\b(?:pids?|process(?:es)?|stacks?|dumps?|traces?|procs?|py-?spy)\b", re.IGNORECASE
)
_IN_ORDER = re.compile(
    r"\b(?:rank order|order of (?:the |their )?ranks?|by ranks?\b"
    r"|ranks? ?(?P<list>\d(?:[\d ,&.\u2013-]|and|to){0,200}\d)(?:,|\))? {0,2}"
    r"(?:in (?:that|this|the same|the) order|in order|respectively|(?:from )?top to bottom)"
    # `ranks in order 0..3`, `ranks top to bottom`
    r"|ranks,? (?:listed |shown )?(?:in (?:rising |ascending |increasing )?order"
    r"|(?:from )?top to bottom)[:,]?(?: ?(?P<then>\d(?:[\d ,&.\u2013-]|and|to){0,200}\d))?)",
    re.IGNORECASE,
)
_BY_RANK = re.compile(r"\b(?:sorted|ordered|listed|numbered|in order)\b", re.IGNORECASE)

_POD = re.compile(r"^Name: {2,40}([a-z0-9][\w.-]{0,200})$")
_POD_RANK = re.compile(r"^\s{2,12}RANK: {1,40}(\d{1,7})$")
_LOGS = re.compile(
    r"(?:kubectl|oc|k) (?:-n \S{1,60} )?logs (?:-{1,2}[a-z]\S{0,60} ){0,4}(?:pods?/)?"
    r"([a-z0-9][\w.-]{0,200})(?!.{0,200} (?:-p|--previous)\b)"
)
_PRINTED_RANK = re.compile(r"^(?:export |[\w.-]{1,40}=\S{1,80} ){0,6}RANK=(\d{1,7})(?!\S)")
_ONE_EACH = re.compile(r"--nproc[_-]per[_-]node[= ]1(?!\S)")
_NODE_RANK = re.compile(r"--node[_-]rank[= ](\d{1,7})(?!\S)")


class HostRanks(NamedTuple):
    """The ranks of a host, from the first to the last, in the order of its devices."""

    host: str
    first: int
    last: int


def list_host_ranks(text: str) -> tuple[HostRanks, ...]:
    """Return the ranks of each host of which a sentence tells them: ``n12 has ranks 8-15``."""
    if _has_host_first(text):
        has = [one.groups() for one in _HAS.finditer(text) if _is_meant(one)]
        told = [*has, *(_MORE_HAS.findall(text) if has else ())]
    else:
        on = [one.groups() for one in _ON.finditer(text) if _is_meant(one)]
        told = [(one[2], *one[:2]) for one in (*on, *(_MORE_ON.findall(text) if on else ()))]
    ranges = [HostRanks(host, int(first), int(last)) for host, first, last in told]
    ranges = [one for one in ranges if 0 < one.last - one.first < _MOST_ON_HOST]
    return (*ranges, *_list_series(text), *_list_listed(text))


def _list_listed(text: str) -> Iterator[HostRanks]:
    """Yield the ranks of hosts that are told one by one, and follow each other."""
    for match in filter(_is_meant, _HOST_LIST.finditer(text)):
        ranks = [int(rank) for rank in re.findall(r"\d+", match["own"] or match["ranks"])]
        if ranks == list(range(ranks[0], ranks[0] + len(ranks))):
            yield HostRanks(match["host"] or match["where"], ranks[0], ranks[-1])


def _is_meant(match: re.Match[str]) -> bool:
    """Tell whether what is said is neither denied nor guessed, by the words before and in it."""
    begin, end = match.span()
    return not _DENIED.search(match.string, max(0, begin - _NEAR), end)


def _list_series(text: str) -> Iterator[HostRanks]:
    for match in filter(_is_meant, _SERIES.finditer(text)):
        stem, low, high, first, last = match.groups()
        count = int(high) - int(low)
        if 0 < count < _MOST_HOSTS and count == int(last) - int(first):
            for number in range(count + 1):
                host = f"{stem}{int(low) + number:0{len(low)}d}"
                yield HostRanks(host, int(first) + number, int(first) + number)


def find_bus(text: str) -> tuple[int, str] | None:
    """Return the rank and the bus id of a line that is about the device of one rank."""
    match = _BUS.search(text)
    if match is None or len(_ANY_RANK.findall(text)) > 1 or not _is_meant(match):
        return None
    return int(match["rank"]), match["bus"]


def find_worker_shift(text: str) -> int | None:
    """Return by how much the rank of a worker's pod is above its number, None where it is not said.

    Where two workers are said to have other shifts, they have none in common.
    """
    shifts = set[int]()
    for match in _WORKER.finditer(text):
        if match["rank"] is None and not match["n"].isdecimal():
            shifts.add(int(match["more"] or 0))
        elif match["rank"] is not None and match["n"].isdecimal():
            shifts.add(int(match["rank"]) - int(match["n"]))
    return shifts.pop() if len(shifts) == 1 and min(shifts) >= 0 else None


def list_pod_ranks(text: str) -> tuple[tuple[str, int], ...]:
    """Return the pods, or hosts, of which a sentence tells the one rank: ``worker-0 = rank 1``."""
    matches = filter(_is_meant, _IS_RANK.finditer(text))
    found = ((one["host"] or one["where"], one["rank"] or one["first"]) for one in matches)
    return tuple((host.lower(), int(rank)) for host, rank in found if int(rank) <= MAX_RANK)


def is_said_pod(said: str, node: str) -> bool:
    """Tell whether people may call a pod or host so: `worker-0` is short for `tts-worker-0`."""
    return said == node or node.endswith(f"-{said}") or f"-{said}-" in node


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
    return "rank" in small and any(
        word in small for word in ("order", "sorted", "respect", "top to bottom")
    )


def find_order(text: str) -> str | None:
    """Return the ranks that processes have in the order in which they stand in a text.

    Returns:
        The list as it is written; empty where all processes stand in the order of ranks, and None
        where the text does not say so.
    """
    match = _IN_ORDER.search(text)
    if match is None or not _is_meant(match) or not _PROCESSES.search(text):
        return None
    if told := match["list"] or match["then"]:
        return told.replace("to", "-")
    is_sorted = not match[0].lower().startswith("by ") or _BY_RANK.search(text)
    return "" if is_sorted else None


class SaidText(NamedTuple):
    """What the text of one line says of where ranks run."""

    host_ranks: tuple[HostRanks, ...] = ()
    order: str | None = None
    worker_shift: int | None = None
    bus: tuple[int, str] | None = None
    own_bus: str = ""
    pod_ranks: tuple[tuple[str, int], ...] = ()
    seat: tuple[str, int] | None = None


NOTHING_SAID = SaidText()


def read_said(text: str, small: str) -> SaidText:
    """Read a line; ``small`` is the same in small letters."""
    own = _OWN_BUS.search(text) if ":00." in text or ".0" in text else None
    if "rank" not in small:
        return SaidText(own_bus=own[1]) if own else NOTHING_SAID
    return SaidText(
        list_host_ranks(text),
        find_order(text) if tells_order(small) else None,
        find_worker_shift(text) if "worker" in small else None,
        find_bus(text) if ":" in text and "." in text else None,
        own[1] if own else "",
        list_pod_ranks(text),
        find_seat(text, small),
    )


@dataclass(slots=True)
class SaidPlaces:
    """What all lines of a log say of where ranks run.

    Attributes:
        host_ranks: The ranks of hosts.
        order: The ranks that processes have in the order in which they stand, as a sentence lists
            them; empty where they stand in the order of ranks, None where nobody says so.
        worker_shifts: By how much ranks are above the numbers of workers' pods.
        rank_by_bus: The ranks that are said to have the device of a bus id.
        rank_by_pod: The rank of a pod or a host that has one.
        seats: Ranks of hosts and pods, as lines tell that name both.
        groups: The members of each group, by its name; groups of several ranks may share it.
    """

    host_ranks: set[HostRanks] = field(default_factory=set)
    order: str | None = None
    worker_shifts: set[int] = field(default_factory=set)
    rank_by_bus: dict[str, set[int]] = field(default_factory=dict)
    rank_by_pod: dict[str, set[int]] = field(default_factory=dict)
    seats: dict[str, set[int]] = field(default_factory=dict)
    groups: dict[str, set[frozenset[int]]] = field(default_factory=dict)

    def note(self, said: SaidText, rank: int) -> None:
        """Take what a line says that a rank wrote; no log says more than so much."""
        if (
            said is NOTHING_SAID
            or len(self.host_ranks) + len(self.rank_by_bus) + len(self.rank_by_pod) > _MOST_SAID
        ):
            return
        self.host_ranks.update(said.host_ranks)
        self.order = self.order if said.order is None else said.order
        if said.worker_shift is not None:
            self.worker_shifts.add(said.worker_shift)
        if said.own_bus and rank != UNKNOWN_RANK and said.bus is None:
            self.rank_by_bus.setdefault(said.own_bus.lower(), set()).add(rank)
        if said.bus is not None:
            self.rank_by_bus.setdefault(said.bus[1].lower(), set()).add(said.bus[0])
        if said.seat is not None and len(self.seats) < _MOST_SAID:
            self.seats.setdefault(said.seat[0], set()).add(said.seat[1])
        for pod, one in said.pod_ranks:
            self.rank_by_pod.setdefault(pod, set()).add(one)

    def note_groups(self, groups: Iterable[tuple[str, frozenset[int]]]) -> None:
        """Take the groups that a line names."""
        for name, members in groups:
            if sum(map(len, self.groups.values())) < _MOST_GROUPS:
                self.groups.setdefault(name, set()).add(members)

    def add(self, later: SaidPlaces) -> None:
        """Take what the next part of the log says."""
        self.host_ranks |= later.host_ranks
        self.order = self.order if later.order is None else later.order
        self.worker_shifts |= later.worker_shifts
        join_sets(self.rank_by_bus, later.rank_by_bus)
        join_sets(self.seats, later.seats)
        join_sets(self.rank_by_pod, later.rank_by_pod)
        join_sets(self.groups, later.groups)

    def find_shift(self) -> int | None:
        """Return by how much ranks are above the numbers of workers' pods, where one is said."""
        return min(self.worker_shifts) if len(self.worker_shifts) == 1 else None

    def find_buses(self) -> dict[int, str]:
        """Return the bus id of the device of each rank of which one is said."""
        sole = {bus: min(ranks) for bus, ranks in self.rank_by_bus.items() if len(ranks) == 1}
        return {rank: bus for bus, rank in sole.items()}


def join_sets(kept: dict[_Key, set[_Value]], fresh: Mapping[_Key, set[_Value]]) -> None:
    """Take what another part tells of the same things."""
    for key, values in fresh.items():
        kept.setdefault(key, set()).update(values)


class PodRanks:
    """Follows what ``kubectl describe`` and ``kubectl logs`` print, for the rank of each pod."""

    def __init__(self) -> None:
        self._pod, self._row = "", 0

    def read(self, text: str, row: int) -> tuple[str, int] | None:
        """Take a line; return a pod and its rank where the line tells it."""
        if text.startswith("Name: ") and (named := _POD.match(text)):
            self._pod, self._row = named[1], row
        elif " logs " in text and (asked := _LOGS.search(text)):
            self._pod, self._row = asked[1], row
        elif self._pod and 0 < row - self._row <= _MOST_BELOW:
            rank = _POD_RANK.match(text) or (_PRINTED_RANK.match(text) if "RANK=" in text else None)
            if rank is None and "proc" in text and _ONE_EACH.search(text):
                # Where a host has one process, that is the rank.
                rank = _NODE_RANK.search(text)
            if rank is not None and int(rank[1]) <= MAX_RANK:
                return self._pod, int(rank[1])
        return None
