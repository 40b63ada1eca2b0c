"""One scene: evidence of all ranks of this node, taken side by side within a few seconds.

The order follows what disturbs least: /proc, py-spy and the mapped op log, which only read memory
and need no GIL, then the probe's thread, and a signal last, because a handled signal interrupts a
system call and can end the hang it should show.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from whystuck.collect.beats import explain_no_beat, read_beat
from whystuck.collect.disarmed import collect_disarmed
from whystuck.collect.executed import copy_executed
from whystuck.collect.group_members import read_begun_groups, read_group_calls, read_groups
from whystuck.collect.job_dirs import copy_artifact, read_artifact
from whystuck.collect.op_logs import OpLogError, OpLogKeeper
from whystuck.collect.peers import collect_peers
from whystuck.collect.processes.connections import collect_connections
from whystuck.collect.processes.outputs import collect_outputs, is_past_program
from whystuck.collect.processes.proc import (
    catches_signal,
    collect_process,
    has_open,
    list_worker_pids,
    read_switches,
)
from whystuck.collect.processes.proc_files import read_environment
from whystuck.collect.processes.profiler_stacks import ProfilerStacksError, collect_profiler_stacks
from whystuck.collect.processes.stacks import StacksError, collect_stacks
from whystuck.collect.processes.target import Target
from whystuck.collect.recorder import RecorderError, ask_probe_for_dump
from whystuck.collect.source_reader import SourceReader
from whystuck.collect.sources import collect_sources
from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.evidence.records import BeatRecord, ProcRecord
from whystuck.safe_text.secrets import hide_environment

BEAT_STALE_S = 3.0
_THREADS = 16
_MAX_WORKERS = 32


@dataclass(frozen=True)
class ScenePlan:
    """How many samples, and how far apart: two or more show what moves.

    ``beside`` is asked meanwhile, with the targets and the folder; each returns what it lacks.
    """

    samples: int = 3
    interval_s: float = 0.8
    beside: tuple[Callable[[Sequence[Target], Path], list[Gap]], ...] = ()


@dataclass
class Scene:
    """A folder that fills; ``gaps`` grows while ranks do not answer."""

    folder: Path
    targets: Sequence[Target]
    gaps: list[Gap] = field(default_factory=list)
    # Ranks of which only what they recorded is wanted, beside the targets.
    recorded: Sequence[Target] = ()
    _op_logs: OpLogKeeper = field(default_factory=OpLogKeeper)
    _procs: dict[Path, ProcRecord] = field(default_factory=dict)
    _samples: int = 0

    def __post_init__(self) -> None:
        """See whose the ranks are, while they live."""
        self._source_reader = SourceReader([*self.targets, *self.recorded])

    def take(self, plan: ScenePlan) -> None:
        """Take recorders, environments and the first samples."""
        with ThreadPoolExecutor(_THREADS) as pool:
            for target in self.targets:
                self._rank_folder(target).mkdir(parents=True, exist_ok=True)
            asked = [pool.submit(ask, self.targets, self.folder) for ask in plan.beside]
            # py-spy first: a dump by the probe shows up in its stacks, and a sample taken at
            # once is the nearest to the moment of the stall.
            self._take_sample(pool)
            list(pool.map(self._take_once, self.targets))
            list(pool.map(self._take_op_log, self._recorders()))
            for _ in range(plan.samples - 1):
                time.sleep(plan.interval_s)
                self._take_sample(pool)
            self.gaps += [gap for one in asked for gap in one.result()]
        self._finish()

    def take_more(self, plan: ScenePlan, is_void: Callable[[], bool] = lambda: False) -> bool:
        """Add samples to a scene that was taken before.

        Args:
            plan: How many, and how far apart.
            is_void: Asked afterwards whether they are of no use, as the job moved meanwhile; they
                are dropped then.

        Returns:
            Whether they were kept.
        """
        first, begin_ns = self._samples, time.time_ns()
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in range(plan.samples):
                self._take_sample(pool)
                time.sleep(plan.interval_s)
        kept = not is_void()
        if kept:
            # As long as the job has not moved, what it recorded later says more.
            for target in self._recorders():
                self._take_op_log(target)
        else:
            self._drop_samples(first, begin_ns)
        self._finish()
        return kept

    def look_on(self, seconds: float, plan: ScenePlan) -> None:
        """Replace the samples by some that are further apart, as long as nobody who rested moves.

        Args:
            seconds: How long to look on. It ends sooner when a main thread runs that did not run
                during the samples before.
            plan: The samples to take at the end.
        """
        resting = self._find_resting()
        self._forget_samples()
        with ThreadPoolExecutor(_THREADS) as pool:
            self._take_sample(pool)
            end_s = time.monotonic() + seconds
            while resting and time.monotonic() < end_s and _still_rest(resting):
                time.sleep(plan.interval_s)
                self._look_at_ranks()
            for _ in range(plan.samples - 1):
                self._take_sample(pool)
                time.sleep(plan.interval_s)
        self._finish()

    def _look_at_ranks(self) -> None:
        """Add looks at processes alone, which tell when their main threads run."""
        for target in self.targets:
            record = self._procs.get(self._rank_folder(target))
            look = collect_process(target.pid)
            if record is not None and look is not None:
                record.samples.append(look)

    def _find_resting(self) -> dict[int, int]:
        """Return the processes whose main thread has not run during the samples, and its count."""
        found = {}
        for folder, record in list(self._procs.items()):
            counts = {look.switches for look in record.samples}
            if len(counts) == 1 and not folder.name.startswith(records.WORKER_DIR_PREFIX):
                found[record.samples[-1].pid] = counts.pop()
        return found

    def _forget_samples(self) -> None:
        for path in self.folder.rglob(records.STACKS_GLOB):
            path.unlink(missing_ok=True)
        for record in list(self._procs.values()):
            record.samples.clear()
        self._samples = 0

    def _drop_samples(self, first: int, begin_ns: int) -> None:
        for index in range(first, self._samples):
            for path in self.folder.rglob(f"stacks-{index}.json"):
                path.unlink(missing_ok=True)
        self._samples = first
        for folder, record in list(self._procs.items()):
            record.samples = [look for look in record.samples if look.taken_ns < begin_ns]
            if not record.samples and folder.name.startswith(records.WORKER_DIR_PREFIX):
                # It was not there before.
                del self._procs[folder]
                shutil.rmtree(folder, ignore_errors=True)

    def copy_records(self) -> None:
        """Copy what the probes left in the job folder: exceptions, lost calls, last dumps."""
        for target in self._recorders():
            folder = self._rank_folder(target)
            for kind, name in (
                ("exception", records.EXCEPTION_FILE),
                ("thread-errors", records.THREAD_ERRORS_FILE),
                ("leaving", records.LEAVING_FILE),
                ("skipped", records.SKIPPED_FILE),
                ("fatal", records.FATAL_FILE),
                ("final", records.FR_PICKLE_FILE),
                ("fr", records.FR_PICKLE_FILE),
                ("final-gloo", records.FR_GLOO_FILE),
                ("fr-gloo", records.FR_GLOO_FILE),
                ("switched", records.SWITCH_FILE),
                ("inspect", records.INSPECT_FILE),
            ):
                source = target.artifact(kind)
                if source is None:
                    continue
                is_dump = name in (records.FR_PICKLE_FILE, records.FR_GLOO_FILE)
                if is_dump and (folder / name).exists():
                    continue
                with suppress(OSError):
                    copy_artifact(source, folder / name)
            self.gaps += collect_disarmed(target.rank, target.artifact("disarmed"))
        for target in self._recorders():
            if not (self._rank_folder(target) / records.OP_LOG_FILE).exists():
                self._take_op_log(target)
        self._take_outputs()
        if self.gaps:
            self._write_gaps()
        collect_sources(self.folder, self._source_reader)

    def _take_outputs(self) -> None:
        """Copy what ranks printed that nobody reads and that have left their program."""
        bare = [target for target in self.targets if target.job_dir is None]
        leaving = [
            target.rank
            for target in bare
            for path in sorted(self._rank_folder(target).glob(records.STACKS_GLOB))[-1:]
            if is_past_program(path.read_bytes())
        ]
        if leaving:
            collect_outputs(bare, leaving, self.folder)

    def _recorders(self) -> list[Target]:
        """Return the targets, and those that died before."""
        found = {target.rank: target for target in (*self.recorded, *self.targets)}
        return [found[rank] for rank in sorted(found)]

    def _take_op_log(self, target: Target) -> None:
        self._take_executed(target)
        for kind, name, what in (
            ("ops", records.OP_LOG_FILE, "op log"),
            ("marks", records.MARKS_FILE, "marks"),
        ):
            if (source := target.artifact(kind)) is None:
                continue
            try:
                self._op_logs.copy(source, self._rank_folder(target) / name)
            except OpLogError as error:
                gap = Gap(target.rank, what, str(error))
                if gap not in self.gaps:
                    self.gaps.append(gap)

    def _take_executed(self, target: Target) -> None:
        source = target.artifact("lines")
        if source is None:
            return
        try:
            copy_executed(source, self._rank_folder(target) / records.EXECUTED_FILE)
        except OSError as error:
            gap = Gap(target.rank, "executed lines", error.strerror or str(error))
            if gap not in self.gaps:
                self.gaps.append(gap)

    def _write_gaps(self) -> None:
        with suppress(OSError):  # a full disk must not cost the report
            (self.folder / records.GAPS_FILE).write_bytes(msgspec.json.encode(self.gaps))

    def _rank_folder(self, target: Target) -> Path:
        return self.folder / target.node / f"{records.RANK_DIR_PREFIX}{target.rank}"

    def _take_sample(self, pool: ThreadPoolExecutor) -> None:
        jobs = [(t.rank, t.pid, self._rank_folder(t)) for t in self.targets]
        for target in self.targets:
            jobs += [
                (target.rank, pid, self._rank_folder(target) / f"{records.WORKER_DIR_PREFIX}{pid}")
                for pid in list_worker_pids(target.pid)[:_MAX_WORKERS]
            ]
        index = self._samples
        self._samples += 1
        list(pool.map(lambda job: self._sample_process(job[0], job[1], job[2], index), jobs))

    def _sample_process(self, rank: int, pid: int, folder: Path, index: int) -> None:
        sample = collect_process(pid)
        if sample is None:
            return
        if not folder.name.startswith(records.WORKER_DIR_PREFIX):
            # A data-loader worker has the sockets of its parent.
            sample = replace(sample, connections=tuple(collect_connections(pid)))
        folder.mkdir(parents=True, exist_ok=True)
        self._procs.setdefault(folder, ProcRecord()).samples.append(sample)
        try:
            (folder / f"stacks-{index}.json").write_bytes(collect_stacks(pid))
        except StacksError as error:
            if index == 0:
                self.gaps.append(Gap(rank, "stacks", str(error)))

    def _take_once(self, target: Target) -> None:
        folder = self._rank_folder(target)
        try:
            environment = hide_environment(read_environment(target.pid))
            (folder / "env.json").write_bytes(msgspec.json.encode(environment))
        except OSError:
            pass  # gone, or not ours to read: nothing depends on it
        probe_answers = self._take_beat_and_dump(target, folder)
        collect_peers(target, folder, probe_answers=probe_answers)
        if not any(folder.glob(records.STACKS_GLOB)):
            self._take_stacks_by_signal(target, folder)
            if not (folder / records.FAULTHANDLER_FILE).exists():
                self._take_stacks_by_profiler(target, folder)

    def _take_beat_and_dump(self, target: Target, folder: Path) -> bool:
        """Take what the probe knows of progress; return whether its thread answers."""
        beat_path = target.artifact("beat")
        beat = None if beat_path is None else read_beat(beat_path)
        if beat_path is None or beat is None:
            reason = "no probe in this process" if beat_path is None else explain_no_beat(beat_path)
            self.gaps.append(Gap(target.rank, "flight recorder dump", reason))
            return False
        record = BeatRecord(
            pid=target.pid,
            age_s=round(beat.age_s, 3),
            stale=beat.age_s > BEAT_STALE_S,
            optimizer_steps=beat.optimizer_steps,
            enqueued=beat.enqueued,
            completed=beat.completed,
            p2p_sent=beat.p2p_sent,
            p2p_received=beat.p2p_received,
            groups=read_groups(target.artifact("groups")),
            group_calls=read_group_calls(target.artifact("groups")),
            begun_groups=read_begun_groups(target.artifact("groups")),
        )
        try:
            self._take_dump(target, folder, record)
        except RecorderError as error:
            self.gaps.append(Gap(target.rank, "flight recorder dump", str(error)))
        (folder / records.BEAT_FILE).write_bytes(msgspec.json.encode(record))
        return not record.stale

    def _take_dump(self, target: Target, folder: Path, record: BeatRecord) -> None:
        """Ask the probe's thread; where it is silent, the op log tells what its recorder would."""
        if record.stale:
            message = f"the probe's thread has not run for {record.age_s:.0f} s"
            raise RecorderError(message)
        probe = target.artifact("probe")
        assert probe is not None  # noqa: S101 - it has a beat
        try:
            ask_probe_for_dump(probe, folder / records.FR_PICKLE_FILE)
        except RecorderError as error:
            record.stale = not error.is_well
            raise

    def _take_stacks_by_signal(self, target: Target, folder: Path) -> None:
        source = target.artifact("faulthandler")
        # The job may have closed it, and would get the stacks in a file of its own.
        before = -1 if source is None else _size_of(source)
        if source is None or before < 0 or not has_open(target.pid, source):
            return
        # A probe of another release may leave no handler while the interpreter is taken down.
        if not catches_signal(target.pid, stacks_signal()):
            return
        try:
            os.kill(target.pid, stacks_signal())
        except OSError:
            return
        deadline_s = time.monotonic() + 1.0
        while _size_of(source) == before and time.monotonic() < deadline_s:
            time.sleep(0.02)
        try:
            text = read_artifact(source)[before:]
        except OSError:
            return
        if text:
            (folder / records.FAULTHANDLER_FILE).write_bytes(text)

    def _take_stacks_by_profiler(self, target: Target, folder: Path) -> None:
        try:
            collect_profiler_stacks(target, folder / records.PROFILER_STACKS_FILE)
        except ProfilerStacksError as error:
            self.gaps.append(Gap(target.rank, "stacks by the profiler", str(error)))

    def _finish(self) -> None:
        for folder, record in list(self._procs.items()):
            (folder / records.PROC_FILE).write_bytes(msgspec.json.encode(record))
        self._write_gaps()
        collect_sources(self.folder, self._source_reader)


def _still_rest(switches_by_pid: Mapping[int, int]) -> bool:
    return all(read_switches(pid) == count for pid, count in switches_by_pid.items())


def stacks_signal() -> int:
    """Return the real-time signal on which the probe's faulthandler writes all stacks."""
    return int(signal.SIGRTMIN) + 5


def _size_of(path: Path) -> int:
    """Return the size of a file in a job folder, -1 when there is none."""
    try:
        return path.lstat().st_size
    except OSError:
        return -1
