"""Builds evidence of small jobs by hand: what each rank recorded, and where it is now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from textwrap import dedent
from typing import Any

from tests.parse.dumps.builders import Entry, as_pickle, make_dump, make_entry

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.call_records import SkippedCalls
from whystuck.evidence.finding import Finding, Report
from whystuck.evidence.live import (
    Beat,
    ExitRecord,
    FailedManager,
    FatalStack,
    ProcessSample,
    PythonException,
    StackSample,
    ThreadStack,
)
from whystuck.evidence.model import Evidence, Incident, Topology
from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.dumps.flight_recorder import parse_flight_recorder
from whystuck.parse.dumps.merge import merge_dumps

TORCH = "/venv/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
WAITING = (
    Frame("all_reduce", C10D, 3000),
    Frame("wrapper", f"{TORCH}/distributed/c10d_logger.py", 81),
)
PENDING = "pending"
STEP_NS = 100_000_000


def at(file: str, line: int, function: str = "train") -> Frame:
    return Frame(function, file, line)


MODULE = at("/job/train.py", 99, "<module>")


def count_ops(entries: Sequence[Entry]) -> dict[str, Any]:
    """Give each group of a rank its number, and count as the recorder does."""
    names = list(dict.fromkeys(entry["process_group"] for entry in entries))
    status: dict[str, Any] = {}
    for entry in entries:
        entry["pg_id"] = names.index(entry["process_group"])
        counts = status.setdefault(str(entry["pg_id"]), {"last_started_collective": -1})
        seq = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
        counts["last_enqueued_collective"] = seq
        if entry["retired"]:
            counts["last_completed_collective"] = seq
    return status


@dataclass
class Job:
    """What is known of a job of a few ranks; each method adds something and returns the job."""

    world: int = 4
    incident: Incident = field(
        default_factory=lambda: Incident(
            kind="stall", stalled_s=30.0, limit_s=20.0, longest_gap_s=4.0
        )
    )
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    stacks: list[StackSample] = field(default_factory=list)
    processes: list[ProcessSample] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    exceptions: list[PythonException] = field(default_factory=list)
    thread_errors: list[PythonException] = field(default_factory=list)
    exits: list[ExitRecord] = field(default_factory=list)
    fatals: list[FatalStack] = field(default_factory=list)
    failed_managers: list[FailedManager] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def ops(
        self,
        ranks: Iterable[int],
        op: str,
        frames: Sequence[Frame] = (),
        *,
        times: int = 1,
        pending: bool = False,
        group: str = "0",
        **changes: Any,
    ) -> Job:
        """Record ops of some ranks, each one number further in its group."""
        for rank in ranks:
            mine = self.entries.setdefault(rank, [])
            for _ in range(times):
                before = [entry for entry in mine if entry["process_group"][0] == group]
                number = len(before) + 1
                shown = [
                    {"name": frame.function, "filename": frame.file, "line": frame.line}
                    for frame in frames
                ]
                desc = "default_pg" if group == "0" else f"group-{group}"
                mine.append(
                    make_entry(
                        op,
                        number,
                        frames=shown,
                        retired=not pending,
                        process_group=(group, desc),
                        **{"time_created_ns": 1_000_000_000 + len(mine) * STEP_NS} | changes,
                    )
                )
        return self

    def steps(self, times: int = 5, line: int = 10) -> Job:
        """Let all ranks reduce at one line of the training loop, as often as given."""
        return self.ops(
            range(self.world), "all_reduce", [at("/job/train.py", line), MODULE], times=times
        )

    def waits(self, ranks: Iterable[int], line: int = 10, op: str = "all_reduce") -> Job:
        """Let ranks be blocked in an op of the default group."""
        site = at("/job/train.py", line)
        chosen = list(ranks)
        self.ops(chosen, op, [site, MODULE], pending=True)
        for rank in chosen:
            self.stands(rank, (*WAITING, site, MODULE))
        return self

    def stands(
        self,
        rank: int,
        frames: Sequence[Frame] | Sequence[Sequence[Frame]],
        *,
        worker: int = 0,
        cpu_share: float = 0.0,
        children_cpu_share: float | None = None,
        read_bytes: int = 0,
        write_bytes: int = 0,
        state: str = "S",
        asleep_s: float = 0.0,
        **thread: Any,
    ) -> Job:
        """Take two samples of a process; two stacks when it moves.

        They are one second apart, or as long as the main thread is known to be asleep.
        """
        span_s = asleep_s or 1.0
        looks = [frames, frames] if not frames or isinstance(frames[0], Frame) else list(frames)
        others = thread.pop("others", ())
        for index, look in enumerate(looks):
            main = ThreadStack(1, "MainThread", tuple(look), is_main=True, **thread)  # type: ignore[arg-type]
            pid = worker or 100 + rank
            artifact = f"n0/rank-{rank}/stacks-{index}.json"
            self.stacks.append(
                StackSample(rank, pid, bool(worker), index, (main, *others), artifact=artifact)
            )
        for index in (0, 1):
            self.processes.append(
                ProcessSample(
                    rank=rank,
                    pid=worker or 100 + rank,
                    worker=bool(worker),
                    taken_ns=int(index * span_s * 1e9),
                    state=state,
                    cpu_s=index * cpu_share * span_s,
                    children_cpu_s=(
                        -1.0
                        if children_cpu_share is None
                        else 7.0 + index * children_cpu_share * span_s
                    ),
                    read_bytes=index * read_bytes,
                    write_bytes=index * write_bytes,
                    artifact=f"n0/rank-{rank}/proc.json",
                    switches=7 if asleep_s else -1,
                )
            )
        return self

    def raises(self, rank: int, kind: str, message: str, frames: Sequence[Frame] = ()) -> Job:
        self.exceptions.append(PythonException(rank, kind, message, tuple(frames)))
        return self

    def ends(
        self, rank: int, *, code: int | None = None, signal: int | None = None, **more: Any
    ) -> Job:
        self.exits.append(ExitRecord(rank=rank, pid=100 + rank, code=code, signal=signal, **more))
        return self

    def loses(
        self,
        rank: int,
        *,
        count: int = 1,
        op: str = "all_reduce",
        group: str = "0",
        members: Iterable[int] = range(4),
        line: int = 10,
    ) -> Job:
        """Let a coalescing manager fail, and torch drop what the rank calls after it."""
        calls = SkippedCalls(op, count, first_step=3, site=(at("/job/train.py", line), MODULE))
        self.failed_managers.append(
            FailedManager(
                rank=rank,
                group=group,
                members=frozenset(members),
                count=count,
                site=(at("/job/warm.py", 4, "warm_up"), MODULE),
                calls=(calls,),
                artifact=f"n0/rank-{rank}/skipped.json",
                row=0,
            )
        )
        return self

    def source(self, path: str, text: str) -> Job:
        self.sources[path] = dedent(text)
        return self

    def of_kind(self, kind: str, **changes: Any) -> Job:
        self.incident = replace(self.incident, kind=kind, **changes)
        return self

    def evidence(self) -> Evidence:
        dumps = [
            parse_flight_recorder(
                as_pickle(make_dump(entries, pg_status=count_ops(entries))),
                rank=rank,
                artifact=f"n0/rank-{rank}/fr.pickle",
                members=self.members,
            )
            for rank, entries in self.entries.items()
        ]
        return Evidence(
            topology=Topology(world_size=self.world),
            incident=self.incident,
            collectives=merge_dumps(dumps),
            stacks=tuple(self.stacks),
            processes=tuple(self.processes),
            beats=tuple(self.beats),
            exceptions=tuple(self.exceptions),
            thread_errors=tuple(self.thread_errors),
            exits=tuple(self.exits),
            fatals=tuple(self.fatals),
            failed_managers=tuple(self.failed_managers),
            sources=self.sources,
        )

    def report(self) -> Report:
        return diagnose(self.evidence())

    def finding(self) -> Finding:
        """Return the only finding there is."""
        (finding,) = self.report().findings
        return finding

    def codes(self) -> list[str]:
        return [finding.code for finding in self.report().findings]
