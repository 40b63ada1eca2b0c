"""``fault.log``: the life of a job in sentences, one section for each round.

A line is a local time of whole seconds and a text, so that people and simple tools can read it.
``fault.jsonl`` has the same events with node, rank and values, see `fault_files`.
"""

from __future__ import annotations

import platform
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from whystuck import __version__
from whystuck.evidence.fault_events import FaultKind
from whystuck.evidence.finding import Finding, Report
from whystuck.evidence.nodes.checks import CHECKS_FILE
from whystuck.evidence.ranks import format_ranks
from whystuck.evidence.records import IncidentRecord
from whystuck.launch.incidents.fault_files import FaultNote
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.options import BootCheck
from whystuck.launch.processes.rank_table import RankProcess, RankTable

_MAX_ENDS = 64
_MAX_TEXT = 500
_MAX_RANKS = 64
_NO_DETAILS: Mapping[str, object] = {}
_UNCHECKED = BootCheck()


@dataclass
class FaultLog:
    """Writes the sections; what cannot be written is lost, and nothing else."""

    evidence: EvidenceFolder
    _has_versions: bool = False
    _ends: int = 0

    def start_round(self, command: Sequence[str], boot_check: BootCheck = _UNCHECKED) -> None:
        """Begin a section, and keep what checks found before."""
        system = f"{platform.system()} {platform.release()}"
        start = f"Start of round {self.evidence.round}: {' '.join(command)}"
        details = {"command": " ".join(command)[:_MAX_TEXT], "system": system}
        self.add(FaultKind.START, start, details=details | {"whystuck_version": __version__})
        self.note(f"Node: {self.evidence.node} ({system})", f"Whystuck Version: {__version__}")
        self.add(FaultKind.CHECK, *boot_check.notes)
        if boot_check.record:
            place = self.evidence.records_dir / CHECKS_FILE
            self.evidence.later(lambda: self.evidence.write(place, boot_check.record))

    def note(self, *texts: str) -> None:
        """Add lines, all at once."""
        self.add(FaultKind.NOTE, *texts)

    def add(
        self,
        kind: FaultKind,
        *texts: str,
        rank: int | None = None,
        details: Mapping[str, object] = _NO_DETAILS,
    ) -> None:
        """Add lines of one kind, all at once."""
        if texts:
            self._put(*(_make_note(text, kind, rank, details) for text in texts))

    def _put(self, *notes: FaultNote) -> None:
        self.evidence.note(*notes)

    def note_ranks(self, table: RankTable) -> None:
        """Tell once what the ranks are, when the first of them knows torch."""
        if self._has_versions or not table.torch_version:
            return
        self._has_versions = True
        ranks = {process.rank for process in table.processes()}
        self.note(
            f"Python Version: {table.python_version}",
            f"PyTorch Version: {table.torch_version}",
            f"Ranks on this node: {format_ranks(ranks)}, of {table.world_size}",
        )

    def note_end(self, *processes: RankProcess) -> None:
        """Tell how ranks ended; ends with code 0 are not told, and no more than some others."""
        # All at once: on a shared file system, each time the log is opened is 4 requests.
        if said := [note for one in processes if (note := self._describe_end(one)) is not None]:
            self._put(*said)

    def _describe_end(self, process: RankProcess) -> FaultNote | None:
        ended = process.exit
        if ended is None or ended.code == 0:
            return None
        self._ends += 1
        if self._ends > _MAX_ENDS:
            more = "More ranks ended; `exit.json` of each tells how."
            return FaultNote(more) if self._ends == _MAX_ENDS + 1 else None
        if ended.signal:
            how = f"ended by {_name_signal(ended.signal)}"
        else:
            how = "ended; its code was not seen" if ended.code is None else f"ended: {ended.code}"
        after = ", after the first failure" if ended.after_launcher_kill else ""
        text = f"Rank {process.rank} (pid {process.pid}) {how}{after}"
        details = {"pid": process.pid, "code": ended.code, "signal": ended.signal}
        details["after_first_failure"] = ended.after_launcher_kill
        return FaultNote(text, FaultKind.RANK_END, process.rank, details)

    def note_attempt(self, attempt: int) -> None:
        """Tell that the launcher itself starts its ranks once more."""
        text = f"The launcher starts its ranks anew (attempt {attempt})."
        self.add(FaultKind.RESTART, text, details={"attempt": attempt})

    def note_stall(self, folder: Path, record: IncidentRecord) -> None:
        """Tell that the job has stalled."""
        details = {
            "incident": folder.name,
            "stalled_s": record.stalled_s,
            "limit_s": record.limit_s,
        }
        text = f"Stall: no progress for {record.stalled_s:.0f} s (limit {record.limit_s:.0f} s)."
        self.add(FaultKind.STALL, text, details=details)

    def note_moving(self, folder: Path, after_s: float) -> None:
        """Tell that the job moves again."""
        details = {"incident": folder.name, "closed_after_s": round(after_s, 1)}
        text = f"Incident {folder.name}: moving again after {after_s:.0f} s."
        self.add(FaultKind.STALL, text, details=details)

    def note_report(self, folder: Path, report: Report) -> None:
        """Tell what an incident was found to be, and where its report lies."""
        verdict = report.verdict.value
        details = {"incident": folder.name, "verdict": verdict}
        said = [
            FaultNote("Start to run Troubleshooting..."),
            _make_note(
                f"Verdict of incident {folder.name}: {verdict}", FaultKind.NOTE, None, details
            ),
            *(_describe_finding(finding, folder) for finding in report.findings[:3]),
        ]
        for place in (place for one in report.findings[:1] for place in one.where[:3]):
            text = f"Where: rank {place.rank}: {place.file}:{place.line} {place.function}"
            said.append(_make_note(text, FaultKind.NOTE, place.rank, details))
        self._put(*said, _make_note(f"Report: {folder / 'report.txt'}", FaultKind.NOTE, None, {}))
        self.evidence.copy_notes(self.evidence.work_of(folder))

    def end_round(self, code: int) -> None:
        """End the section."""
        text = f"Round {self.evidence.round} ends with code {code}."
        self.add(FaultKind.EXIT, text, details={"code": code})


def _make_note(
    text: str, kind: FaultKind, rank: int | None, details: Mapping[str, object]
) -> FaultNote:
    return FaultNote(" ".join(text.split())[:_MAX_TEXT], kind, rank, details)


def _describe_finding(finding: Finding, folder: Path) -> FaultNote:
    named = f"{finding.code} {finding.name} ({finding.confidence.value})"
    ranks = list(finding.culprits.ranks)
    details = {
        "incident": folder.name,
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "ranks": ranks[:_MAX_RANKS],
        "nodes": list(finding.culprits.nodes)[:_MAX_RANKS],
    }
    text = f"{finding.severity.value}: {named}: {finding.summary}"
    return _make_note(text, FaultKind.FINDING, ranks[0] if len(ranks) == 1 else None, details)


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
