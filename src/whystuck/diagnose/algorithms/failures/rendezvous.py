"""What processes say of the store at which they meet, and of the environment they came with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

# Longer numbers are no ranks and no ports.
_CLIENTS = re.compile(r"waiting for clients\. (\d{1,7})/(\d{1,7}) clients joined")
_BARRIER = re.compile(r"world_size=(\d{1,7}), (?:worker_count|num_workers_joined)=(\d{1,7})")
# gloo: the store's prefixes, then the rank whose address is waited for.
_GLOO_KEY = re.compile(r"keys: \S*//cpu//\S*?/?(\d{1,7})(?=[\s,.]|$)")
_NCCL_ROOT = re.compile(r"retrieving ncclUniqueId from \[(\d{1,7})\]")
_CONNECT = re.compile(
    r"(?:while trying to connect to|failed to connect to any network address of)"
    r" \(([^,)]+), (\d{1,7})\)"
)
# gloo and HCCL name the other end; NCCL's lines of it are read as those of the store.
_PEER = re.compile(
    r"Connect timeout \[([^\]]{1,80})\]|(?:timed out connecting: |willRetry=0\b)"
    r".{0,200}?remote=\[?([^\],\s]{1,80})\]|to connect to dstRank \(server ([^,)]{1,80}),"
)
_TRY = re.compile(r"failed to connect to \[?([^\]\s]+?)\]?:(\d{1,7}) \(errno: (\d{1,7})")
_NAME = re.compile(r"network addresses of \(([^,)]+), (\d{1,7})\) cannot be retrieved")
_NO_NAME = re.compile(
    r"Name or service not known|Temporary failure in name resolution|nodename nor servname"
    r"|gai error"
)
# What tools say of a name that no name service knows.
_NO_SUCH = re.compile(
    r"services \"([\w.-]{1,200})\" not found|server can't find ([\w.-]{1,200}): "
    r"|^\s{0,8}Host ([\w.-]{1,200}) not found: \d"
)
_FOREIGN = re.compile(r"Ping failed, invalid value returned from server")
_TWICE = re.compile(r"rank (\d{1,7}) of (\d{1,7}) ranks has already checked in")
_COUNTS = re.compile(r"mismatch in rank count from procs (\d{1,7}) : (\d{1,7})")
_NO_ROUTE = re.compile(r"No route to host|Network is unreachable|EHOSTUNREACH|ENETUNREACH")
_REFUSED = re.compile(r"Connection refused|ECONNREFUSED")
_ANY = re.compile(
    r"Rendezvous(?:Timeout|Connection|State)Error|DistStoreError|connection to the C10d store has"
    r" failed|wait timeout after \d+ms|connectFullMesh failed|Socket Timeout"
    r"|store based barrier|Getting socket times out|wait socket establish timeout"
    r"|host not found: |kvs_init: connection (?:time|error)"
    r"|[Cc]onnect(?: to \S+)? (?:failed|returned)|: Wait timeout$"
    r"|ibv_modify_qp failed"
)
_FULL_MESH = re.compile(r"connectFullMesh failed with .*timeout", re.IGNORECASE | re.DOTALL)
_REFUSED_ERRNO, _UNREACHABLE_ERRNOS = 111, {101, 110, 113}
_DIGITS = 7
_VARIABLE = re.compile(
    r"\b(MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE)['\"]?[=:] ?['\"]?([^\s,'\"}]+)"
)


@dataclass(frozen=True)
class Said:
    """A text that a process wrote: who, where, and a key by which it is found again."""

    text: str
    rank: int
    node: str
    writer: str
    key: int
    is_failure: bool = False


@dataclass(frozen=True)
class Environment:
    """The variables by which a process joins the others, as it printed them."""

    rank: int
    writer: str
    key: int
    values: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """Return a variable, empty when it was not printed."""
        return dict(self.values).get(name, "")


@dataclass
class Meeting:
    """All that was said about one attempt to meet; sets hold keys of what was said."""

    SUBJECTS: ClassVar[tuple[str, ...]] = ("MASTER_ADDR", "MASTER_PORT")

    # Joined and expected numbers of processes.
    counts: list[tuple[int, int]] = field(default_factory=list)
    # Rank that is waited for -> ranks that wait for it.
    awaited: dict[int, set[int]] = field(default_factory=dict)
    twice: dict[int, set[int]] = field(default_factory=dict)
    sizes: set[int] = field(default_factory=set)
    # (host, port) -> what was said of it
    endpoints: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    attempts: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    # Address of another rank -> what says that it was not reached.
    peers: dict[str, set[int]] = field(default_factory=dict)
    errnos: Counter[int] = field(default_factory=Counter)
    nameless: dict[str, set[int]] = field(default_factory=dict)
    # Names that a tool does not find either, and what says so.
    unknown: dict[str, set[int]] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    environments: list[Environment] = field(default_factory=list)
    # What says that it failed, whatever the reason.
    failures: set[int] = field(default_factory=set)
    # Ranks that had the addresses of all whom they expected, and could not connect to them.
    complete: set[int] = field(default_factory=set)
    is_anonymous: bool = False
    ranks: set[int] = field(default_factory=set)

    @property
    def addresses(self) -> dict[tuple[str, str], set[int]]:
        """Addresses that could not be reached, and what says so."""
        return self.endpoints or self.attempts

    @property
    def missing_count(self) -> tuple[int, int] | None:
        """How many processes joined, and how many were to; the most that anybody saw."""
        return max(self.counts, default=None)

    def list_unknown(self) -> set[int]:
        """Return what tells of names that a tool does not find either."""
        return {
            key
            for host, keys in self.nameless.items()
            if any(_is_same_name(host, name) for name in self.unknown)
            for key in keys
        }

    def list_absent(self) -> set[int]:
        """Return ranks that others waited for and that did not say that they wait themselves."""
        # Whoever counts those that came is rank 0, where the store is.
        return set(self.awaited) - self.ranks - ({0} if self.counts else set())

    def list_split(self) -> tuple[set[int], set[int]]:
        """Return ranks that had all they expected, and ranks that expected more.

        With one number of ranks in mind, all would wait for the same one.
        """
        more = {rank for ranks in self.awaited.values() for rank in ranks} - {-1}
        return (self.complete, more - self.complete) if self.complete and more else (set(), set())

    def list_twins(self) -> dict[int, set[int]]:
        """Return ranks that several processes were started with, and what says so."""
        writers: dict[int, set[str]] = {}
        for item in self.environments:
            writers.setdefault(item.rank, set()).add(item.writer)
        found = {rank: set(keys) for rank, keys in self.twice.items()}
        for item in self.environments:
            if len(writers[item.rank]) > 1:
                found.setdefault(item.rank, set()).add(item.key)
        return found

    def find_odd(self, *names: str) -> tuple[str, dict[str, list[Environment]]] | None:
        """Find the first variable of which processes have different values."""
        for name in names:
            by_value: dict[str, list[Environment]] = {}
            for item in self.environments:
                if value := item.get(name):
                    by_value.setdefault(value, []).append(item)
            if len(by_value) > 1:
                return name, by_value
        return None


def hold_meeting(said: Iterable[Said]) -> Meeting:
    """Read all that was said into one picture of it."""
    meeting = Meeting()
    for item in said:
        _read_environment(meeting, item)
        if _read_counts(meeting, item) | _read_reach(meeting, item) or _ANY.search(item.text):
            meeting.failures |= {item.key} if item.is_failure else set()
            if item.is_failure and item.rank >= 0:
                meeting.ranks.add(item.rank)
                meeting.complete |= {item.rank} if _FULL_MESH.search(item.text) else set()
            meeting.is_anonymous |= item.is_failure and item.rank < 0
    # Only its address of one kind may be missing, unless nobody knows the name.
    meeting.failures |= meeting.list_unknown()
    return meeting


def _is_same_name(one: str, other: str) -> bool:
    """Tell whether two names are of one host, one of them perhaps without its domain."""
    longer, shorter = sorted((one.rstrip("."), other.rstrip(".")), key=len, reverse=True)
    return longer == shorter != "" or (shorter != "" and longer.startswith(f"{shorter}."))


def _read_environment(meeting: Meeting, item: Said) -> None:
    found = dict(_VARIABLE.findall(item.text))
    rank = found.get("RANK", "")
    if "WORLD_SIZE" in found and is_number(rank):
        values = tuple(sorted(found.items()))
        meeting.environments.append(Environment(int(rank), item.writer, item.key, values))


def _read_counts(meeting: Meeting, item: Said) -> bool:
    text, is_told = item.text, False
    if match := _CLIENTS.search(text):
        meeting.counts.append((int(match[1]), int(match[2])))
        is_told = True
    if match := _BARRIER.search(text):
        meeting.counts.append((int(match[2]), int(match[1])))
        is_told = True
    for pattern in (_GLOO_KEY, _NCCL_ROOT):
        if match := pattern.search(text):
            meeting.awaited.setdefault(int(match[1]), set()).add(item.rank)
            is_told = True
    if match := _TWICE.search(text):
        meeting.twice.setdefault(int(match[1]), set()).add(item.key)
        is_told = True
    if match := _COUNTS.search(text):
        meeting.sizes |= {int(match[1]), int(match[2])}
        is_told = True
    return is_told


def _read_reach(meeting: Meeting, item: Said) -> bool:
    text, is_told = item.text, False
    if match := _CONNECT.search(text):
        meeting.endpoints.setdefault((match[1], match[2]), set()).add(item.key)
        is_told = True
    if match := _PEER.search(text):
        peer = next(part for part in match.groups() if part)
        meeting.peers.setdefault(peer, set()).add(item.key)
        is_told = True
    if match := _TRY.search(text):
        # Some releases of torch print an address here that is not the one they tried.
        meeting.errnos[int(match[3])] += 1
        meeting.attempts.setdefault((match[1], match[2]), set()).add(item.key)
    elif _NO_ROUTE.search(text):
        meeting.errnos[113] += 1
        is_told = True
    elif _REFUSED.search(text):
        meeting.errnos[_REFUSED_ERRNO] += 1
    if match := _NAME.search(text):
        meeting.nameless.setdefault(match[1], set()).add(item.key)
    elif _NO_NAME.search(text):
        meeting.nameless.setdefault("", set()).add(item.key)
    if match := _NO_SUCH.search(text):
        name = next(part for part in match.groups() if part)
        meeting.unknown.setdefault(name, set()).add(item.key)
    if _FOREIGN.search(text):
        meeting.foreign.add(item.key)
        is_told = True
    return is_told


def is_number(text: str) -> bool:
    """Tell whether a text is a number of ranks, nodes or a device, rather than one that is huge."""
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS


def name_reach(meeting: Meeting) -> str:
    """Return how an address could not be reached: ``refused`` or ``unreachable``."""
    refused = meeting.errnos[_REFUSED_ERRNO]
    silent = sum(count for errno, count in meeting.errnos.items() if errno in _UNREACHABLE_ERRNOS)
    return "refused" if refused > silent else "unreachable"
