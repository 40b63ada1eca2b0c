"""``fault.log``: the life of a job in sentences, one section for each round.

A line is a local time of whole seconds and a text, so that people and simple tools can read it.
"""

from __future__ import annotations

import platform
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whystuck import __version__
from whystuck.evidence.finding import Report
from whystuck.evidence.nodes.checks import CHECKS_FILE
from whystuck.evidence.ranks import format_ranks
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.options import BootCheck
from whystuck.launch.rank_table import RankProcess, RankTable

_MAX_ENDS = 64
_MAX_TEXT = 500
_UNCHECKED = BootCheck()


@dataclass
class FaultLog:
    """Writes the sections; what cannot be written is lost, and nothing else."""

    evidence: EvidenceFolder
    _has_versions: bool = False
    _ends: int = 0

    def start_round(self, command: Sequence[str], boot_check: BootCheck = _UNCHECKED) -> None:
        """Begin a section, and keep what checks found before."""
        self.note(
            f"Start of round {self.evidence.round}: {' '.join(command)}",
            f"Node: {self.evidence.node} ({platform.system()} {platform.release()})",
            f"Whystuck Version: {__version__}",
            *boot_check.notes,
        )
        if boot_check.record:
            place = self.evidence.records_dir / CHECKS_FILE
            self.evidence.later(lambda: self.evidence.write(place, boot_check.record))

    def note(self, *texts: str) -> None:
        """Add lines, all at once."""
        self.evidence.note(*(" ".join(text.split())[:_MAX_TEXT] for text in texts))

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
        if said := [text for one in processes if (text := self._describe_end(one))]:
            self.note(*said)

    def _describe_end(self, process: RankProcess) -> str:
        ended = process.exit
        if ended is None or ended.code == 0:
            return ""
        self._ends += 1
        if self._ends > _MAX_ENDS:
            is_first = self._ends == _MAX_ENDS + 1
            return "More ranks ended; `exit.json` of each tells how." if is_first else ""
        if ended.signal:
            how = f"ended by {_name_signal(ended.signal)}"
        else:
            how = "ended; its code was not seen" if ended.code is None else f"ended: {ended.code}"
        after = ", after the first failure" if ended.after_launcher_kill else ""
        return f"Rank {process.rank} (pid {process.pid}) {how}{after}"

    def note_report(self, folder: Path, report: Report) -> None:
        """Tell what an incident was found to be, and where its report lies."""
        said = [
            "Start to run Troubleshooting...",
            f"Verdict of incident {folder.name}: {report.verdict.value}",
        ]
        for finding in report.findings[:3]:
            named = f"{finding.code} {finding.name} ({finding.confidence.value})"
            said.append(f"{finding.severity.value}: {named}: {finding.summary}")
        said += [
            f"Where: rank {place.rank}: {place.file}:{place.line} {place.function}"
            for finding in report.findings[:1]
            for place in finding.where[:3]
        ]
        self.note(*said, f"Report: {folder / 'report.txt'}")
        self.evidence.copy_notes(self.evidence.work_of(folder))

    def end_round(self, code: int) -> None:
        """End the section."""
        self.note(f"Round {self.evidence.round} ends with code {code}.")


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
