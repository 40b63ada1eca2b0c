"""H121 rendezvous-failed: processes that did not find each other, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from whystuck.diagnose.algorithms.failures import name_known, write_exception
from whystuck.diagnose.algorithms.meeting import (
    Environment,
    Meeting,
    Said,
    hold_meeting,
    name_reach,
)
from whystuck.diagnose.cases.parts import find_time, is_said
from whystuck.diagnose.log_view import LogView
from whystuck.diagnose.story import OWN, WAIT, Case
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs import LogEvent
from whystuck.evidence.ranks import format_ranks, name_ranks

_MAX_LINES = 6


@dataclass
class _Told:
    """What was said, and the lines and tracebacks that say it."""

    meeting: Meeting
    events: dict[int, LogEvent]
    exceptions: dict[int, PythonException]
    view: LogView

    def list_lines(self, keys: Iterable[int]) -> tuple[LogEvent, ...]:
        """Return the lines of some keys."""
        return tuple(self.events[key] for key in sorted(keys) if key in self.events)

    def get_text(self, key: int) -> str:
        """Return what was said."""
        if key in self.events:
            return self.events[key].text
        return write_exception(self.exceptions[key])

    def find_ranks(self, keys: Iterable[int]) -> tuple[int, ...]:
        """Return the ranks that said something."""
        told = {self._get(key).rank for key in keys}
        return tuple(sorted(told - {-1}))

    def find_nodes(self, keys: Iterable[int]) -> tuple[str, ...]:
        """Return the hosts on which something was said."""
        items = [self._get(key) for key in keys]
        found = {item.node or self.view.node_by_rank.get(item.rank, "") for item in items}
        return tuple(sorted(found - {""}))

    def _get(self, key: int) -> LogEvent | PythonException:
        return self.events[key] if key in self.events else self.exceptions[key]


@dataclass(frozen=True)
class _Answer:
    """What differs, in the words of one finding."""

    kind: str
    says: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    keys: frozenset[int] = frozenset()
    tier: int = WAIT
    confidence: Confidence = Confidence.LIKELY
    details: dict[str, Any] = field(default_factory=dict)
    remedies: tuple[str, ...] = ()


def make_rendezvous(view: LogView) -> Iterator[Case]:
    """Make the case of processes that did not find each other."""
    told = _listen(view)
    meeting = told.meeting
    if not meeting.failures:
        return
    answer = next(found for find in _FINDERS if (found := find(told)) is not None)
    keys = answer.keys | meeting.failures
    lines = [*told.list_lines(answer.keys), *told.list_lines(meeting.failures - answer.keys)]
    exceptions = tuple(item for key, item in told.exceptions.items() if key in keys)
    victims = set(told.find_ranks(meeting.failures)) | view.ranks
    yield Case(
        code="H121",
        summary=answer.says,
        tier=answer.tier,
        ranks=answer.ranks,
        nodes=answer.nodes,
        victims=tuple(sorted(victims - set(answer.ranks))),
        lines=tuple(lines[:_MAX_LINES]),
        exceptions=exceptions[:_MAX_LINES],
        time=find_time(told.list_lines(meeting.failures), exceptions),
        confidence=answer.confidence,
        details={"kind": answer.kind, **answer.details},
        remedies=answer.remedies,
        scope=frozenset(told.find_ranks(meeting.failures)),
    )


def _listen(view: LogView) -> _Told:
    """Collect what lines and tracebacks say of the rendezvous."""
    events: dict[int, LogEvent] = {}
    exceptions: dict[int, PythonException] = {}
    said: list[Said] = []
    for event in view.list_events("H121"):
        if is_said(event):
            key = len(said)
            events[key] = event
            writer = f"{event.artifact}:{event.pid}"
            is_failure = event.role == "cause"
            said.append(Said(event.text, event.rank, event.node, writer, key, is_failure))
    for item in view.exceptions:
        if name_known(item) == "H121" and not item.is_caught:
            key = len(said)
            exceptions[key] = item
            text, writer = write_exception(item), f"{item.artifact}:{item.pid}"
            said.append(Said(text, item.rank, item.node, writer, key, is_failure=True))
    return _Told(hold_meeting(said), events, exceptions, view)


def _find_twins(told: _Told) -> _Answer | None:
    """Find ranks that more than one process was started with."""
    twins = told.meeting.list_twins()
    if not twins:
        return None
    ranks = tuple(sorted(twins))
    known = {item.rank for item in told.meeting.environments}
    sizes = [item.get("WORLD_SIZE") for item in told.meeting.environments]
    size = max((int(text) for text in sizes if text.isdecimal()), default=0)
    nobody = sorted(set(range(size)) - known) if known else []
    tail = f"; nobody is {name_ranks(nobody)}" if nobody and len(nobody) <= len(ranks) else ""
    return _Answer(
        "duplicate-rank",
        f"more than one process was started as {name_ranks(ranks)}{tail}",
        ranks=ranks,
        keys=frozenset(key for keys in twins.values() for key in keys),
        tier=OWN,
        confidence=Confidence.CERTAIN if told.meeting.twice else Confidence.LIKELY,
        details={"missing": nobody},
        remedies=(
            ("give each process a RANK of its own; torchrun does, and with srun take SLURM_PROCID"),
        ),
    )


def _find_sizes(told: _Told) -> _Answer | None:
    """Find processes that expect different numbers of ranks."""
    odd = told.meeting.find_odd("WORLD_SIZE")
    if odd is None and not told.meeting.sizes:
        return None
    few = _find_few(odd[1]) if odd else []
    values = sorted(odd[1] if odd else map(str, told.meeting.sizes), key=lambda text: text.zfill(9))
    ranks = tuple(sorted({item.rank for item in few}))
    who = f"; {name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {few[0].get('WORLD_SIZE')}"
    return _Answer(
        "world-size",
        f"processes were started with different WORLD_SIZE: {' and '.join(values)}"
        + (who if few else ""),
        ranks=ranks,
        keys=frozenset(item.key for item in few),
        tier=OWN,
        confidence=Confidence.CERTAIN,
        details={"world_sizes": values},
        remedies=("set WORLD_SIZE to nodes x processes of a node, the same for all",),
    )


def _find_few(by_value: dict[str, list[Environment]]) -> list[Environment]:
    """Return the processes that differ from most; none where no value is that of most."""
    counts = sorted((len(items) for items in by_value.values()), reverse=True)
    if counts[0] <= sum(counts[1:]):
        return []
    return [item for items in by_value.values() if len(items) < counts[0] for item in items]


def _find_endpoints(told: _Told) -> _Answer | None:
    """Find processes that were sent to different addresses or ports."""
    odd = told.meeting.find_odd(*Meeting.SUBJECTS)
    few = _find_few(odd[1]) if odd else []
    if odd is None:
        return None
    name, by_value = odd
    ranks = tuple(sorted({item.rank for item in few}))
    most = max(by_value, key=lambda value: len(by_value[value]))
    who = (
        f"{name_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} started with "
        f"{name}={few[0].get(name)}, the others with {most}"
        if few
        else f"processes were started with different {name}: {' and '.join(sorted(by_value))}"
    )
    counts = told.meeting.missing_count
    tail = f"; {counts[0]} of {counts[1]} processes met" if counts else ""
    return _Answer(
        "endpoint",
        who + tail,
        ranks=ranks,
        keys=frozenset(item.key for item in few) | _find_counted(told),
        details={"variable": name, "values": sorted(by_value), "missing": list(ranks)},
        remedies=(f"set {name} to the same value for all processes: that of the node of rank 0",),
    )


def _find_counted(told: _Told) -> frozenset[int]:
    """Return the keys of what tells how many processes met."""
    return frozenset(
        key
        for key in told.meeting.failures
        if any(words in told.get_text(key) for words in ("clients joined", "joined="))
    )


def _find_unresolved(told: _Told) -> _Answer | None:
    """Find a name that a host cannot resolve, where the rendezvous failed there too."""
    meeting = told.meeting
    tried = {host for host, _ in meeting.endpoints}
    keys = {
        key
        for host, found in meeting.nameless.items()
        if not host or not tried or host in tried
        for key in found
    }
    keys = {key for key in keys if _has_failed(told, key)}
    if not keys:
        return None
    hosts = sorted(host for host in meeting.nameless if host)
    name = hosts[0] if hosts else "the name of the rendezvous"
    nodes, ranks = _find_odd_ones(told, keys)
    who = " and ".join(nodes) or (name_ranks(ranks) if ranks else "")
    return _Answer(
        "unresolved",
        f"{name} could not be resolved" + (f" on {who}" if who else ""),
        ranks=() if nodes else ranks,
        nodes=nodes,
        keys=frozenset(keys),
        details={"host": hosts[0] if hosts else ""},
        remedies=(
            f"getent hosts {hosts[0] if hosts else 'NAME'}   # on every node",
            "use the address in place of the name: MASTER_ADDR or --rdzv-endpoint",
        ),
    )


def _has_failed(told: _Told, key: int) -> bool:
    """Tell whether who said something also says that the rendezvous failed."""
    event = told.events.get(key)
    if event is None:
        return True
    failures = told.meeting.failures - {key}
    others = {(one.artifact, one.rank) for one in told.list_lines(failures)}
    raised = (told.exceptions[one] for one in failures if one in told.exceptions)
    others |= {(one.artifact, one.rank) for one in raised}
    return any(file == event.artifact and event.rank in {rank, -1} for file, rank in others)


def _find_odd_ones(told: _Told, keys: set[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the hosts, and the ranks, that have a trouble which others do not have."""
    nodes, ranks = told.find_nodes(keys), told.find_ranks(keys)
    other_nodes = set(told.find_nodes(told.meeting.failures - keys)) - set(nodes)
    hosts = set(told.view.node_by_rank.values()) | {file.node for file in told.view.files} - {""}
    others = told.meeting.ranks - set(ranks)
    is_some = bool(other_nodes) or set(nodes) < hosts
    return nodes if is_some else (), ranks if others else ()


def _find_foreign(told: _Told) -> _Answer | None:
    """Find an address at which something else answers."""
    if not told.meeting.foreign:
        return None
    _, ranks = _find_odd_ones(told, told.meeting.foreign)
    return _Answer(
        "not-a-store",
        "what answers at the address of the store is not a store"
        + (f", for {name_ranks(ranks)}" if ranks else ""),
        ranks=ranks,
        keys=frozenset(told.meeting.foreign),
        remedies=(
            "ss -ltnp | grep PORT   # on the node of MASTER_ADDR: who listens there",
            "check MASTER_ADDR and MASTER_PORT, and proxies between the nodes",
        ),
    )


def _find_unreached(told: _Told) -> _Answer | None:
    """Find an address that could not be reached."""
    meeting = told.meeting
    keys = {key for found in meeting.endpoints.values() for key in found}
    if not keys & meeting.failures and not meeting.errnos:
        return None
    if not keys & meeting.failures and meeting.missing_count:
        return None
    kind = name_reach(meeting)
    host, port = max(meeting.endpoints, key=lambda at: len(meeting.endpoints[at]), default=("", ""))
    nodes, ranks = _find_odd_ones(told, keys)
    where = f"{host}:{port}" if host else "the address of the store or of a peer"
    how = "refused the connection" if kind == "refused" else "could not be reached"
    who = " and ".join(nodes) or (name_ranks(ranks) if ranks else "")
    return _Answer(
        kind,
        f"{where} {how}" + (f", from {who}" if who else ""),
        ranks=ranks,
        nodes=nodes,
        keys=frozenset(keys),
        details={"host": host, "port": int(port) if port.isdecimal() else 0},
        remedies=(
            f"nc -vz {host or 'HOST'} {port or 'PORT'}   # from the node that could not reach it",
            "ss -ltnp   # on the node of rank 0: does its process listen, and on which address",
            "check MASTER_ADDR, MASTER_PORT and firewalls between the nodes",
        ),
    )


def _find_missing(told: _Told) -> _Answer | None:
    """Find ranks that did not come."""
    meeting, view = told.meeting, told.view
    absent = meeting.list_absent()
    counts = meeting.missing_count
    if not absent and counts is None:
        return None
    joined, world = counts or (0, 0)
    if not absent and 0 < joined < world:
        silent = set(range(world)) - _list_heard(view)
        absent = silent if len(silent) == world - joined else set()
    ranks = tuple(sorted(absent))
    share = f"{joined} of {world} processes came" if counts else "not all processes came"
    who = f"; {name_ranks(ranks)} did not" if ranks else "; who did not is not known"
    if ranks and not counts:
        share, who = f"{name_ranks(ranks)} did not come", "; the others waited until the time limit"
    return _Answer(
        "missing-rank",
        f"{share}{who}",
        ranks=ranks,
        nodes=tuple(sorted({view.node_by_rank.get(rank, "") for rank in ranks} - {""})),
        keys=_find_counted(told),
        details={"joined": joined, "expected": world, "missing": list(ranks)},
        remedies=(
            f"see whether {name_ranks(ranks) if ranks else 'each rank'} was started, and its log",
        ),
    )


def _list_heard(view: LogView) -> set[int]:
    """Return the ranks that wrote anything, or of which anything was recorded."""
    heard = {rank for file in view.files for rank in file.ranks}
    heard |= {event.rank for event in view.events} | {item.rank for item in view.exceptions}
    return heard | {item.rank for item in view.exits}


def _find_nodes_missing(told: _Told) -> _Answer | None:
    """Find how many nodes a launcher waited for, and how many asked to join."""
    view = told.view
    wanted = [
        int(event.groups["nodes"])
        for event in view.list_signatures("elastic.min_nodes")
        if (event.groups.get("nodes") or "").isdecimal()
    ]
    joins = list(view.list_signatures("elastic.join"))
    came = {event.groups.get("member") or "" for event in joins}
    if not wanted or not came or len(came) >= max(wanted):
        return None
    return _Answer(
        "missing-node",
        f"{len(came)} of {max(wanted)} nodes came to the rendezvous; there is no log of the others",
        details={"joined": len(came), "expected": max(wanted), "members": sorted(came)},
        remedies=(
            (
                "look at the nodes that did not come: was the launcher started there, with the "
                "same --rdzv-id and --rdzv-endpoint"
            ),
        ),
    )


def _find_nothing(told: _Told) -> _Answer | None:
    """Say only that it failed."""
    ranks = told.find_ranks(told.meeting.failures)
    who = f" on ranks {format_ranks(ranks)}" if ranks else ""
    return _Answer(
        "timeout",
        f"processes did not find each other in time{who}; who was missing is not known",
        remedies=("collect the logs of all nodes, those of the launcher included",),
    )


_FINDERS: tuple[Callable[[_Told], _Answer | None], ...] = (
    _find_twins,
    _find_sizes,
    _find_endpoints,
    _find_unresolved,
    _find_foreign,
    _find_unreached,
    _find_missing,
    _find_nodes_missing,
    _find_nothing,
)
