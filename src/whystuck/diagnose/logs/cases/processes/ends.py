"""C201 process-killed and C203 native-crash: processes that a signal ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import CRASH_SIGNALS, name_fatal, name_signal
from whystuck.diagnose.algorithms.stacks.frames import describe_place, make_places
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import LINKED, NEAR, OUTSIDE, OWN, TAKEN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence, Place
from whystuck.evidence.live import ExitRecord, FatalStack
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_SIGINT, _SIGKILL, _SIGTERM = 2, 9, 15
_PROCESS = re.compile(r"process (\d+)")
# Native code says this before it aborts; an abort without it is often torch's own.
# What the others of a node print may stand between.
_NEAR_ROWS = 8
_ABORTS = ("crt.heap", "crt.terminate")
# What torch throws in its own threads when a peer or a device is gone.
_TORCH = re.compile(
    r"c10|gloo|NCCL|ProcessGroup|[Ww]atchdog|CUDA error|SocketImpl|TCPStore|Connection|timeout"
)
# What its exceptions say, in the line below the one that tells of them.
_THROWN = ("c10d.watchdog_timeout", "c10d.watchdog_exc", "nccl.result", "nccl.own_error")
_FATALS = ("py.bus_error", "elastic.segv", "segv.libnccl", "segv.kernel", *_ABORTS)
_SEGFAULT = re.compile(
    r"(?<!\S)(\S+)\[(\d+)\]: (?:segfault|trap|general protection).{0,300} in (\S{1,300}?)\["
)


def make_killed(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that a signal from outside ended, or a probe of Kubernetes."""
    yield from _make_probed(view)
    taken = _list_taken(view)
    hard = {rank: item for rank, item in taken.items() if item.signal == _SIGKILL}
    # Launchers clean up with SIGTERM first: beside a SIGKILL, a SIGTERM is theirs.
    taken = hard or {rank: item for rank, item in taken.items() if not _is_cleaned_up(view, item)}
    if not taken:
        yield from _make_nameless(view)
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
        code=codes.PROCESS_KILLED,
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


def _make_nameless(view: LogView) -> Iterator[Case]:
    """Make the case of a SIGKILL of which a launcher does not tell whom it met."""
    ends = [
        item
        for item in view.exits
        if item.rank < 0 and name_signal(item) == "SIGKILL" and not item.after_launcher_kill
    ]
    if not ends or any(_is_before(item, ends) for item in view.exits if item.rank >= 0):
        return
    nodes = {item.node for item in ends} - {""}
    on = f" of {min(nodes)}" if len(nodes) == 1 else ""
    yield Case(
        code=codes.PROCESS_KILLED,
        summary=f"a process{on} ended by SIGKILL from outside; which rank it was and who sent it "
        "is not in the logs",
        tier=TAKEN,
        nodes=tuple(nodes) if on else (),
        exits=tuple(ends),
        time=find_time(ends),
        confidence=Confidence.POSSIBLE,
        details={"signal": "SIGKILL", "sender": "outside"},
    )


def _is_before(item: ExitRecord, ends: Sequence[ExitRecord]) -> bool:
    """Tell whether a process failed that may have done so before another one was killed."""
    is_later = all(item.artifact == one.artifact and item.row > one.row for one in ends)
    return bool(item.signal) or (bool(item.code) and not is_later)


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
    stops: dict[str, int] = {}
    for event in view.list_signatures("slurm.cancel", "slurm.preempt", "slurm.timelimit"):
        if event.row > 0:
            stops[event.artifact] = min(event.row, stops.get(event.artifact, event.row))
    found: dict[int, ExitRecord] = {}
    for item in view.exits:
        name = name_signal(item)
        if item.rank < 0 or not name or name in CRASH_SIGNALS or item.after_launcher_kill:
            continue
        is_swept = item.artifact in stops and stops[item.artifact] < item.row
        if item.pid not in sent and not is_swept:
            found[item.rank] = item
    late = {(one.artifact, one.row) for one in found.values() if _has_waited(view, one)}
    return {rank: one for rank, one in found.items() if (one.artifact, one.row) not in late}


def _has_waited(view: LogView, item: ExitRecord) -> bool:
    """Tell whether a process had given up waiting before it was ended, as its own lines say.

    What ended it then did not stop the job, nor did what ended others in the same line.
    """
    return any(
        event.rank == item.rank and event.artifact == item.artifact and event.row < item.row
        for event in view.list_signatures(*WAITS, "c10d.dump_signal")
        if is_said(event)
    )


def _is_cleaned_up(view: LogView, item: ExitRecord) -> bool:
    """Tell whether another rank had failed by itself before a launcher's signal ended this one."""
    if name_signal(item) != "SIGTERM":
        return False
    others = (one for one in view.exits if one.code and one.rank not in (-1, item.rank))
    return any(one.artifact == item.artifact and _is_no_later(one, item) for one in others)


def _is_no_later(one: ExitRecord, other: ExitRecord) -> bool:
    return one.time is None or other.time is None or one.time.ns <= other.time.ns


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
    ranks = frozenset[int]().union(*{view.find_ranks_of(event) for event in events})
    nodes = sorted({node for event in events if (node := view.find_node_of(event))})
    yield Case(
        code=codes.PROCESS_KILLED,
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


def _is_teardown(view: LogView, thrown: LogEvent) -> bool:
    """Tell whether torch has just said that it takes the process down: it throws for that."""
    return any(
        0 < thrown.row - one.row <= _NEAR_ROWS and one.artifact == thrown.artifact
        for one in view.list_signatures("c10d.teardown")
    )


def make_crashes(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that crashed in native code."""
    events = [event for event in view.list_signatures(*_FATALS) if is_said(event)]
    thrown = [event for event in events if event.signature == "crt.terminate"]
    said = {(event.artifact, event.row) for event in view.events if event.signature in _THROWN}
    is_own = any((event.artifact, event.row + 1) in said for event in thrown)
    is_thrown = is_own or any(_TORCH.search(event.text) for event in thrown)
    is_thrown |= bool(thrown) and all(_is_teardown(view, event) for event in thrown)
    if is_thrown:
        events = [event for event in events if event.signature != "crt.terminate"]
    ends = [item for item in view.exits if name_signal(item) in CRASH_SIGNALS]
    # torch aborts for reasons of its own: without a word of a crash, an abort is none.
    hard = [item for item in ends if name_signal(item) != "SIGABRT"]
    if any(is_said(event) for event in view.list_signatures("py.shm_small", "nccl.shm")):
        # A page of /dev/shm that is not there ends who touches it: the mistake is told as one.
        hard = [item for item in hard if item.rank >= 0 or name_signal(item) != "SIGBUS"]
    fatals = _drop_torch_aborts(view, events, is_thrown=is_thrown)
    if not (events or fatals or hard):
        return
    known = [*list_ranks(events), *(item.rank for item in fatals), *_list_named(view, events)]
    ranks = sorted({rank for rank in known if rank >= 0} or {*list_ranks(hard or ends)})
    if not known and not hard and len(ranks) > 1:
        ranks = []
    blamed = set(ranks)
    own = [item for item in hard or ends if item.rank in blamed or not ranks]
    signal = _name_signal(own, events, [item.reason for item in fatals])
    where = _place(fatals, ranks)
    everywhere = view.is_everywhere(ranks)
    who = "all ranks" if everywhere else name_ranks(ranks) if ranks else "a rank"
    place = f" in {describe_place(where[0])}" if where else ""
    library = _find_library(events)
    # A kernel tells of any process of its host: without a rank, it may be none of this job's.
    is_of_machines = not fatals and all(view.is_of_machine(event) for event in events)
    yield Case(
        code=codes.NATIVE_CRASH,
        summary=f"{who} crashed with {signal}{place}" + (f", in {library}" if library else ""),
        tier=OWN,
        ranks=() if everywhere else tuple(ranks),
        lines=tuple(sorted(events, key=_order_line)),
        exits=tuple(own),
        fatals=fatals,
        where=where,
        time=find_time(events, own),
        details={"signal": signal} | ({"library": library} if library else {}),
        support=LINKED if ranks or own or not is_of_machines else NEAR,
    )


def _drop_torch_aborts(
    view: LogView, events: list[LogEvent], *, is_thrown: bool
) -> tuple[FatalStack, ...]:
    """Return the fatal stacks but for torch's own aborts: of ranks that speak of a peer or limit.

    A word of native code before it, or any other signal, makes it a crash. Where torch has thrown
    for a peer, an abort that nobody signed is the end of that.
    """
    if any(item.signature in _ABORTS for item in events):
        return view.fatals
    signs = ("c10d.", "nccl.", "gloo.", "cuda.", "store.")
    speaking = {
        event.rank
        for event in view.events
        if event.role != "context" and event.signature.startswith(signs)
    }
    return tuple(
        item
        for item in view.fatals
        if not (item.rank in speaking or (item.rank < 0 and is_thrown))
        or name_fatal(item.reason) != "SIGABRT"
    )


def _list_named(view: LogView, events: list[LogEvent]) -> Iterator[int]:
    for event in events:
        if match := _SEGFAULT.search(event.text):
            rank = view.find_rank_of_pid(int(match[2]), event.node)
            if rank is not None:
                yield rank


def _find_library(events: list[LogEvent]) -> str:
    return next((match[3] for event in events if (match := _SEGFAULT.search(event.text))), "")


def _order_line(event: LogEvent) -> tuple[bool, bool]:
    return event.signature == "elastic.segv" and "Fatal" not in event.text, event.rank < 0


def _name_signal(own: list[ExitRecord], events: list[LogEvent], reasons: list[str]) -> str:
    if own:
        return name_signal(own[0])
    names = [name_fatal(text) for text in (*reasons, *(event.text for event in events))]
    told = [name for name in names if name.startswith("SIG")]
    is_abort = any(event.signature in _ABORTS for event in events)
    return told[0] if told else "SIGABRT" if is_abort else "SIGSEGV"


def _place(fatals: Sequence[FatalStack], ranks: list[int]) -> tuple[Place, ...]:
    places: list[Place] = []
    blamed = set(ranks)
    for fatal in fatals:
        rank = fatal.rank if fatal.rank >= 0 or len(ranks) != 1 else ranks[0]
        if (rank in blamed or not ranks) and fatal.threads:
            places += make_places(rank, fatal.threads[0].frames)
    return tuple(places)
