"""C201 process-killed and C203 native-crash: processes that a signal ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from whystuck.diagnose.algorithms.failures import CRASH_SIGNALS, name_fatal, name_signal
from whystuck.diagnose.algorithms.frames import make_places
from whystuck.diagnose.cases.parts import find_time, is_said, list_ranks
from whystuck.diagnose.log_view import LogView
from whystuck.diagnose.story import LINKED, OUTSIDE, OWN, TAKEN, Case
from whystuck.evidence.finding import Confidence, Place
from whystuck.evidence.live import ExitRecord
from whystuck.evidence.logs import LogEvent
from whystuck.evidence.ranks import name_ranks

_SIGINT, _SIGKILL, _SIGTERM = 2, 9, 15
_PROCESS = re.compile(r"process (\d+)")
# Native code says this before it aborts; an abort without it is often torch's own.
_ABORTS = ("native.abort", "native.heap")
_FATALS = ("py.bus_error", "elastic.segv", "segv.libnccl", "segv.kernel", *_ABORTS)
_SEGFAULT = re.compile(r"(\S+)\[(\d+)\]: (?:segfault|trap|general protection).* in (\S+?)\[")


def make_killed(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that a signal from outside ended, or a probe of Kubernetes."""
    yield from _make_probed(view)
    taken = _list_taken(view)
    hard = {rank: item for rank, item in taken.items() if item.signal == _SIGKILL}
    # Launchers clean up with SIGTERM first: beside a SIGKILL, a SIGTERM is theirs.
    taken = hard or taken
    if not taken:
        return
    ranks = sorted(taken)
    signals = sorted({name_signal(item) for item in taken.values()})
    if view.is_everywhere(ranks) and len(ranks) > 1:
        if signals != ["SIGKILL"]:
            return  # somebody ended the whole job: another case
        ranks = []
    nodes = {item.node for item in taken.values() if item.node}
    names = " and ".join(signals)
    who = name_ranks(ranks) if ranks else "all ranks"
    lines = _list_lines(view, taken)
    yield Case(
        code="C201",
        summary=f"{who} ended by {names} from outside"
        + (
            "; who sent it is not in the logs"
            if ranks
            else ": the kernel, the batch system or an operator; no log of theirs is there"
        ),
        tier=TAKEN,
        ranks=tuple(ranks),
        nodes=tuple(sorted(nodes)) if ranks else (),
        lines=lines,
        exits=tuple(taken.values()),
        time=find_time(taken.values(), lines),
        confidence=Confidence.LIKELY
        if 0 < len(ranks) <= 1 or (len(nodes) == 1 and ranks)
        else Confidence.POSSIBLE,
        details={"signal": names, "sender": "outside"},
        remedies=_advise(nodes),
    )


def _advise(nodes: set[str]) -> tuple[str, ...]:
    return tuple(
        f"look for the sender on {node}: `ssh {node} \"dmesg -T | grep -i 'killed process'\"`"
        for node in sorted(nodes)[:2]
    )


def _list_taken(view: LogView) -> dict[int, ExitRecord]:
    """Return the ends by a signal that is no crash and not of the launcher's clean-up."""
    sent = {
        int(match[1])
        for event in view.list_signatures("elastic.sigterm")
        if (match := _PROCESS.search(event.text))
    }
    stops = [
        (event.artifact, event.row)
        for event in view.list_signatures("slurm.")
        if event.signature in {"slurm.cancel", "slurm.preempt", "slurm.timelimit"}
    ]
    found: dict[int, ExitRecord] = {}
    for item in view.exits:
        name = name_signal(item)
        if item.rank < 0 or not name or name in CRASH_SIGNALS or item.after_launcher_kill:
            continue
        is_swept = any(item.artifact == artifact and 0 < row < item.row for artifact, row in stops)
        if item.pid not in sent and not is_swept:
            found[item.rank] = item
    return found


def _list_lines(view: LogView, taken: Mapping[int, ExitRecord]) -> tuple[LogEvent, ...]:
    """Return the lines in which the launcher says that these processes failed."""
    pids = {item.pid for item in taken.values() if item.pid}
    return tuple(
        event
        for event in view.list_signatures("elastic.root")
        if (event.groups.get("pid") or "").isdecimal() and int(event.groups["pid"]) in pids
    )[:4]


def _make_probed(view: LogView) -> Iterator[Case]:
    events = list(view.list_signatures("k8s.probe_failed"))
    if not events:
        return
    ranks = frozenset(rank for event in events for rank in view.find_ranks_of(event))
    nodes = sorted({event.node for event in events if event.node})
    yield Case(
        code="C201",
        summary=f"Kubernetes ended the container of {name_ranks(ranks) if ranks else 'a pod'}: its "
        "liveness probe failed",
        tier=OUTSIDE,
        ranks=tuple(sorted(ranks)),
        nodes=tuple(nodes),
        lines=tuple(events),
        time=find_time(events),
        details={"signal": "SIGTERM", "sender": "Kubernetes"},
        remedies=("give the probe more time: `timeoutSeconds`, `failureThreshold` of the pod",),
        support=LINKED,
        is_foreign=True,
    )


def make_crashes(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that crashed in native code."""
    events = [event for event in view.list_signatures(*_FATALS) if is_said(event)]
    exits = {item.rank: item for item in view.exits if name_signal(item) in CRASH_SIGNALS}
    exits = {rank: item for rank, item in exits.items() if rank >= 0}
    fatals = view.evidence.fatals
    spoken = [event for event in events if event.signature != "elastic.segv"]
    if _is_abort_only(exits, spoken, events) and not fatals:
        return
    known = [*list_ranks(events), *(item.rank for item in fatals), *_list_killed(view, events)]
    ranks = sorted({rank for rank in known if rank >= 0})
    crashed = [rank for rank, item in exits.items() if name_signal(item) != "SIGABRT"]
    ranks = ranks or sorted(crashed) or (sorted(exits) if len(exits) == 1 else [])
    if not (events or fatals or crashed):
        return
    signal = _name_signal(exits, ranks, events, [item.reason for item in fatals])
    where = _place(view, ranks)
    everywhere = len(ranks) > 1 and view.is_everywhere(ranks)
    who = "all ranks" if everywhere else name_ranks(ranks) if ranks else "a rank"
    place = (
        f" in {where[0].function} ({where[0].file.rpartition('/')[2]}:{where[0].line})"
        if where
        else ""
    )
    library = _find_library(events)
    own = [exits[rank] for rank in ranks if rank in exits]
    yield Case(
        code="C203",
        summary=f"{who} crashed with {signal}{place}" + (f", in {library}" if library else ""),
        tier=OWN,
        ranks=() if everywhere else tuple(ranks),
        lines=tuple(sorted(events, key=_order_line)),
        exits=tuple(own),
        where=where,
        time=find_time(events, own),
        confidence=Confidence.LIKELY,
        details={"signal": signal} | ({"library": library} if library else {}),
    )


def _is_abort_only(
    exits: Mapping[int, ExitRecord], spoken: list[LogEvent], events: list[LogEvent]
) -> bool:
    """Tell whether all there is are aborts without a word: torch aborts for reasons of its own."""
    signals = {name_signal(item) for item in exits.values()}
    return not spoken and signals <= {"SIGABRT"} and not events


def _list_killed(view: LogView, events: list[LogEvent]) -> Iterator[int]:
    for event in events:
        if match := _SEGFAULT.search(event.text):
            rank = view.find_rank_of_pid(int(match[2]), event.node)
            if rank is not None:
                yield rank


def _find_library(events: list[LogEvent]) -> str:
    return next((match[3] for event in events if (match := _SEGFAULT.search(event.text))), "")


def _order_line(event: LogEvent) -> tuple[bool, bool]:
    return event.signature == "elastic.segv" and "Fatal" not in event.text, event.rank < 0


def _name_signal(
    exits: Mapping[int, ExitRecord], ranks: list[int], events: list[LogEvent], reasons: list[str]
) -> str:
    for rank in ranks:
        if rank in exits:
            return name_signal(exits[rank])
    texts = [*reasons, *(event.text for event in events)]
    names = [name for text in texts if (name := name_fatal(text)).startswith("SIG")]
    return (
        names[0]
        if names
        else "SIGABRT"
        if any(e.signature in _ABORTS for e in events)
        else "SIGSEGV"
    )


def _place(view: LogView, ranks: list[int]) -> tuple[Place, ...]:
    places: list[Place] = []
    for fatal in view.evidence.fatals:
        rank = fatal.rank if fatal.rank >= 0 or len(ranks) != 1 else ranks[0]
        if (rank in ranks or not ranks) and fatal.threads:
            places += make_places(rank, fatal.threads[0].frames)
    return tuple(places)
