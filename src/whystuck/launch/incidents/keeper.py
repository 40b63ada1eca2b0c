"""From "something is wrong" to a folder with a report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.collect.node.coredump import collect_coredump
from whystuck.collect.node.devices import collect_devices
from whystuck.collect.node.ras import collect_ras
from whystuck.collect.scene import Scene, ScenePlan
from whystuck.evidence.errors import WhystuckError
from whystuck.evidence.fault_events import FaultKind
from whystuck.evidence.finding import Gap, Report, Verdict
from whystuck.evidence.records import (
    INSPECT_FILE,
    LAUNCHER_LOG_FILE,
    LOG_FILE,
    MARKS_FILE,
    OP_LOG_FILE,
    IncidentRecord,
    JobRecord,
)
from whystuck.launch.incidents.fault_log import FaultLog
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.incident import (
    Incident,
    describe_end,
    describe_good_end,
    headline,
    is_doubtful,
    note_end,
)
from whystuck.launch.incidents.torch_files import TorchFiles
from whystuck.launch.node_watch import NodeWatch
from whystuck.launch.options import RunOptions
from whystuck.launch.output.rank_logs import RankLogs
from whystuck.launch.processes.rank_table import RankTable
from whystuck.launch.restarts.ending import RoundEnd
from whystuck.launch.restarts.round_end import describe_round
from whystuck.safe_text.escaping import escape_line, show_line

_STALL_PLAN = ScenePlan(samples=3, interval_s=0.8, beside=(collect_ras, collect_devices))
_DOUBT_PLAN = ScenePlan(samples=2, interval_s=1.0)
_EXIT_PLAN = ScenePlan(samples=2, interval_s=0.4)
_LOG_TAIL_BYTES = 256 << 10


@dataclass
class IncidentKeeper:
    """Takes scenes and makes reports.

    ``say`` prints a text for the user; ``on_progress`` is called when a step of a report is done,
    ``on_cause`` when it is known why the round ended, before that is written.
    """

    options: RunOptions
    evidence: EvidenceFolder
    table: RankTable
    say: Callable[[str], None]
    torch_files: TorchFiles
    node: NodeWatch
    logs: RankLogs
    fault_log: FaultLog
    job: JobRecord
    on_progress: Callable[..., None]
    on_cause: Callable[[], None] = lambda: None
    has_color: bool = False
    _exit_scene: Incident | None = field(default=None)
    _end_report: Report | None = None
    _attempt_report: Report | None = None

    def open_stall(self, record: IncidentRecord, has_moved: Callable[[], bool]) -> Incident | None:
        """Take the scene of a stall and report it; None when the job moved meanwhile.

        A rank that computes while we look may be about to arrive: it is looked at for longer
        before it is named.
        """
        incident = self._new(record, alive_only=True)
        incident.scene.take(_STALL_PLAN)
        # The others may wait for a rank that has ended: on devices they lose no connection by it.
        self.evidence.write_exits(incident.work, self.table.exits(incident.record.attempt))
        self._watch_node(incident, None)
        report = None if has_moved() else self._diagnose(incident)
        if report is not None and is_doubtful(report):
            incident.scene.take_more(_DOUBT_PLAN)
            report = None if has_moved() else self._diagnose(incident)
        if report is None:
            self.evidence.drop(incident.folder)
            return None
        if self.options.gpu_coredump:
            self._dump_device(incident, report)
            report = self._diagnose(incident)
        self.fault_log.note_stall(incident.folder, incident.record)
        self._tell(incident, report)
        return incident

    def _dump_device(self, incident: Incident, report: Report) -> None:
        """Dump the device of one rank, of one that is named where there is one."""
        first = report.findings[0].culprits.ranks if report.findings else []
        targets = sorted(incident.scene.targets, key=lambda one: one.rank not in first)
        incident.scene.gaps += collect_coredump(targets, incident.work)

    def look_again(
        self, incident: Incident, stalled_s: float, has_moved: Callable[[], bool]
    ) -> None:
        """Diagnose an open stall once more, with its age; tell when the verdict changed."""
        if not incident.scene.take_more(_DOUBT_PLAN, is_void=has_moved):
            return  # the job goes on
        incident.record.stalled_s = round(stalled_s, 1)
        self.evidence.write_exits(incident.work, self.table.exits(incident.record.attempt))
        before, report = incident.report, self._diagnose(incident)
        if before is None or headline(before) != headline(report):
            self._tell(incident, report)
        else:
            self._write(incident, report)
            self._publish(incident)

    def close_stall(self, incident: Incident, after_s: float) -> None:
        """Note that the job moves again."""
        incident.record.closed_after_s = round(after_s, 1)
        self._write_record(incident)
        if incident.report is not None:
            # From the same files, so that `whystuck diagnose` says the same.
            self._write(incident, self._diagnose(incident))
        self._publish(incident, is_last=True)
        self.fault_log.note_moving(incident.folder, after_s)
        self.say(f"whystuck: moving again after {after_s:.0f} s\n")

    def end_stall(self, incident: Incident, end: IncidentRecord) -> None:
        """Note how the job ended while it was stuck, and take the dumps that torch wrote of it."""
        self._end_report = incident.report
        self.on_cause()
        note_end(incident.record, end)
        if not self.evidence.hangs and self.torch_files.keep(incident.work):
            # From the same files, so that `whystuck diagnose` says the same.
            self._write(incident, self._diagnose(incident))
        self._write_record(incident)
        self._publish(incident, is_last=True)
        text = f"Incident {incident.folder.name}: the job ended while it was stuck."
        self.fault_log.add(FaultKind.STALL, text, details={"incident": incident.folder.name})

    def say_answer(self, incident: Incident, how: str) -> None:
        """Say in one line how the job ended and why: the launcher prints a lot since the report."""
        findings = incident.report.findings if incident.report else []
        what = f"{findings[0].code}: {findings[0].summary}" if findings else "no cause was found"
        self.say(f"\nwhystuck: {how}; {show_line(what)}\n")
        place = self.evidence.place_of(incident.folder) / "report.html"
        self.say(f"report: {escape_line(str(place))}\n")

    def write_job(self) -> None:
        """Write ``job.json``, with the versions that ranks have told so far."""
        self.job.torch_version = self.table.torch_version
        self.job.python_version = self.table.python_version
        self.evidence.has_peers = self.table.has_peers
        self.evidence.write_job(self.job)

    def take_exit_scene(self) -> None:
        """Take the scene while a rank that fails is held."""
        record = IncidentRecord(
            kind="exit", opened_ns=time.time_ns(), world_size=self.table.world_size
        )
        self._exit_scene = self._new(record, alive_only=True)
        self._exit_scene.scene.take(_EXIT_PLAN)

    @property
    def has_no_exit_scene(self) -> bool:
        """Whether no scene of a failure was taken, or it is reported already."""
        return self._exit_scene is None

    def report_exit_scene(self) -> None:
        """Report a failure whose processes are kept, before it has ended the job."""
        incident = self._exit_scene
        if incident is None:
            return
        self._copy_exits_and_logs(incident.work, None)
        self._watch_node(incident, None)
        self._tell(incident, self._diagnose(incident))

    def close_exit(self, record: IncidentRecord, attempt: int | None = None) -> None:
        """Report an end that was not 0, with the scene taken before it, if any.

        ``attempt`` is the launcher's attempt that ended, when it goes on with another.
        """
        incident = self._exit_scene or self._new(record, alive_only=False)
        note_end(incident.record, record)
        incident.record.world_size = record.world_size
        incident.record.attempt = self.table.attempt if attempt is None else attempt
        incident.scene.targets = self.table.targets(alive_only=False, attempt=attempt)
        incident.scene.recorded = incident.scene.targets
        self._exit_scene = None
        incident.scene.copy_records()
        next_ns = None if attempt is None else self.table.began_ns.get(attempt + 1)
        if self.evidence.hangs:
            reason = "the file system of the evidence does not answer"
            incident.scene.gaps.append(Gap(None, "dumps of torch, and logs from before", reason))
        else:
            self.torch_files.keep(incident.work, next_ns)
        self._copy_exits_and_logs(incident.work, attempt)
        self._watch_node(incident, attempt)
        report = self._diagnose(incident)
        if attempt is None:
            self._end_report = report
            self.on_cause()
        else:
            self._attempt_report = report
        # A command without ranks that fails has said itself what is wrong, when its words hold
        # nothing that we know.
        if not (report.findings or self.table.processes()):
            self._write(incident, report)
            self._publish(incident, is_last=True)
            return
        if incident.report is not None and headline(incident.report) == headline(report):
            # It was told while the scene was kept.
            self._write(incident, report)
            self._publish(incident, is_last=True)
        else:
            self._tell(incident, report, is_last=True)
        if attempt is None:
            self.say_answer(incident, describe_end(record))

    def describe_end(self, code: int) -> RoundEnd:
        """Return how the round ended, and what its last report says of why."""
        return describe_round(code, self.evidence.round, self._end_report, self.table, self.logs)

    def close_good_end(self, record: IncidentRecord) -> None:
        """Report a job that ended with code 0, when something was wrong on the way all the same."""
        if self.job.restarts:
            self.say(f"\nwhystuck: {describe_good_end(self.job.restarts, self._attempt_report)}\n")
        self.drop_exit_scene()
        kept = [one.artifact("skipped") for one in self.table.targets(alive_only=False)]
        if not any(path is not None and path.exists() for path in kept):
            self._tell_inspection()
            return
        incident = self._new(record, alive_only=False)
        incident.scene.copy_records()
        self._copy_exits_and_logs(incident.work, None)
        report = self._diagnose(incident)
        if report.verdict is Verdict.DIVERGED:
            self._tell(incident, report, is_last=True)
        else:
            self.evidence.drop(incident.folder)

    def _tell_inspection(self) -> None:
        """Report what inspection has found in a job that ended well; nothing when it is healthy."""
        node = self.evidence.node
        found = sorted(self.evidence.records_dir.glob(f"rank-*/{INSPECT_FILE}"))
        if not found:
            return
        record = IncidentRecord(kind="inspection", opened_ns=time.time_ns(), command_exit=0)
        record.world_size = self.table.world_size
        incident = self._new(record, alive_only=True)
        # Nothing else belongs to it: there was no stall, and nobody failed.
        incident.scene.targets = incident.scene.recorded = ()
        for path in found:
            target = incident.work / node / path.parent.name
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.name)
            for name in (OP_LOG_FILE, MARKS_FILE):
                if (kept := path.with_name(name)).exists():
                    shutil.copyfile(kept, target / name)
        report = self._diagnose(incident)
        if any(finding.code.startswith("V") for finding in report.findings):
            self._tell(incident, report, is_last=True)
        else:
            self.evidence.drop(incident.folder)

    def open_slow(self) -> str | None:
        """Report ranks that are late while the job runs; None where it could not be written."""
        record = IncidentRecord(
            kind="slow", opened_ns=time.time_ns(), world_size=self.table.world_size
        )
        incident = self._new(record, alive_only=True)
        incident.scene.targets = ()
        self._watch_node(incident, None)
        report = self._diagnose(incident)
        if report.verdict is not Verdict.SLOW:
            self.evidence.drop(incident.folder)
            return None if any(one.what == "op log" for one in incident.scene.gaps) else ""
        self._write(incident, report)
        self.fault_log.note_report(incident.folder, report)
        self._publish(incident, is_last=True)
        first = report.findings[0]
        text = f"{first.summary} ({first.code})"
        self.say(f"whystuck: {show_line(text)}\n")
        place = self.evidence.place_of(incident.folder) / "report.html"
        self.say(f"report: {escape_line(str(place))}\n")
        return text

    def drop_exit_scene(self) -> None:
        """Forget the scene of a failure after which the job still ended well."""
        if self._exit_scene is not None:
            self.evidence.drop(self._exit_scene.folder)
            self._exit_scene = None

    def _new(self, record: IncidentRecord, *, alive_only: bool) -> Incident:
        folder = self.evidence.next_incident()
        record.cwd = self.job.cwd
        record.round = self.evidence.round
        record.attempt = self.table.attempt
        record.job = self.job
        work = self.evidence.work_of(folder)
        work.mkdir(parents=True, exist_ok=True)
        self.evidence.write_incident(work, record)
        scene = Scene(work, self.table.targets(alive_only=alive_only))
        # Of one that is dead there is nothing to sample, but what it recorded is still there.
        scene.recorded = self.table.targets(alive_only=False)
        return Incident(folder, work, record, scene, stalled_at_open_s=record.stalled_s)

    def _diagnose(self, incident: Incident) -> Report:
        from whystuck.pipeline import Choice, diagnose_paths

        incident.scene.copy_records()
        self.on_progress()
        if not self.evidence.hangs:
            self.torch_files.keep_lines(incident.work, incident.scene.targets)
        self.write_job()
        self._write_record(incident)
        self.on_progress()
        try:
            home = self._find_home(incident)
            choice = Choice(signatures=self.options.signatures, home=home)
            return diagnose_paths([incident.work], self.on_progress, choice)
        except WhystuckError as error:  # nothing was there to be taken
            gap = Gap(None, "evidence", error.message)
            return Report(verdict=Verdict.INCONCLUSIVE, gaps=[gap])
        except Exception as error:  # noqa: BLE001 - a fault of ours is a gap, not the end
            reason = f"whystuck itself failed: {type(error).__name__}: {error}"
            self.evidence.note(reason)
            gap = Gap(None, "diagnosis", reason)
            return Report(verdict=Verdict.INCONCLUSIVE, gaps=[gap])

    def _find_home(self, incident: Incident) -> Path:
        """Return the folder with the logs of the round: on a shared file system, copies of them.

        They are read by their descriptors: by their names, each costs some 12 requests.
        """
        from whystuck.pipeline import MAX_ROUND_LOG_BYTES

        stage, record = self.evidence.stage, incident.record
        if stage is None:
            return self.evidence.root
        if record.kind != "exit" or not record.command_exit:
            return stage if self.evidence.hangs else self.evidence.root
        home = stage / "logs"
        shutil.rmtree(home, ignore_errors=True)
        if self.evidence.hangs:
            return stage
        is_whole = self.logs.copy_round(record.attempt, home, MAX_ROUND_LOG_BYTES)
        return home if is_whole else self.evidence.root

    def _write(self, incident: Incident, report: Report) -> None:
        from whystuck.pipeline import render_all

        self.on_progress()
        incident.report = report
        incident.record.verdict = report.verdict.value
        self._write_record(incident)
        for name, data in render_all(report).items():
            self.evidence.write(incident.work / name, data)

    def _write_record(self, incident: Incident) -> None:
        self.evidence.write_incident(incident.work, incident.record)

    def _publish(self, incident: Incident, *, is_last: bool = False) -> None:
        self.evidence.publish(incident.folder, is_last=is_last)

    def _tell(self, incident: Incident, report: Report, *, is_last: bool = False) -> None:
        from whystuck.pipeline import render_terminal

        self._write(incident, report)
        self.fault_log.note_report(incident.folder, report)
        self._publish(incident, is_last=is_last)
        self.say(render_terminal(report, color=self.has_color))
        place = self.evidence.place_of(incident.folder)
        waits = "" if place == incident.folder else f" (until {self.evidence.root} answers)"
        self.say(f"evidence: {escape_line(f'{place}{waits}')}\n")

    def _copy_exits_and_logs(self, folder: Path, attempt: int | None) -> None:
        self.evidence.write_exits(folder, self.table.exits(attempt))
        for process in self.table.processes(attempt):
            rank_dir = folder / self.evidence.node / f"rank-{process.rank}"
            if tail := self.logs.read_tail(process, _LOG_TAIL_BYTES):
                self.evidence.write(rank_dir / LOG_FILE, tail)
        if tail := self.logs.launcher.read_tail(_LOG_TAIL_BYTES):
            self.evidence.write(folder / self.evidence.node / LAUNCHER_LOG_FILE, tail)

    def _watch_node(self, incident: Incident, attempt: int | None) -> None:
        """Add what is known of the node; a fault in here costs no more than that."""
        try:
            gaps = self.node.write_incident(incident.work, self.table.processes(attempt))
        except Exception as error:  # noqa: BLE001 - the rest of the evidence is still good
            reason = f"whystuck itself failed: {type(error).__name__}: {error}"
            gaps = [Gap(None, "state of the node", reason)]
        incident.scene.gaps += gaps
