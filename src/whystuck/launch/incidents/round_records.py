"""What the ranks of a round leave behind in the job folder, kept when each has ended."""

from __future__ import annotations

import queue
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from whystuck.collect.disarmed import collect_disarmed
from whystuck.collect.executed import copy_executed
from whystuck.collect.op_logs import OpLogError, OpLogKeeper, OpLogSpaceError
from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.mark_history import MarkHistory
from whystuck.launch.processes.rank_table import RankProcess, RankTable

_FINISH_TIMEOUT_S = 20.0


@dataclass
class RoundRecords:
    """Copies op logs, marks and answers to the switch, in a thread beside the supervisor's.

    Of a rank that the launcher started anew, the log of the last attempt has the plain name. When
    there is no room for it, those of the oldest attempts go.
    """

    evidence: EvidenceFolder
    table: RankTable
    op_logs: OpLogKeeper = field(default_factory=OpLogKeeper)
    marks: MarkHistory | None = None
    _wanted: queue.SimpleQueue[RankProcess | None] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _kept: dict[int, RankProcess] = field(default_factory=dict)
    _old: list[tuple[int, Path]] = field(default_factory=list)
    _seen: list[RankProcess] = field(default_factory=list)
    _gaps: list[Gap] = field(default_factory=list)

    def keep(self, process: RankProcess) -> None:
        """Keep what a rank left that has ended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="round records", daemon=True)
            self._thread.start()
        self._wanted.put(process)

    def finish(self) -> None:
        """Keep what is left of all others, and tell what could not be kept."""
        if self.marks is not None:
            self.marks.close()
            self._gaps += self.marks.gaps
        for process in self.table.processes():
            if process.is_alive:
                self.keep(process)
        if self._thread is not None:
            self._wanted.put(None)
            self._thread.join(_FINISH_TIMEOUT_S)
        if self._thread is not None and self._thread.is_alive():
            self._gaps.append(Gap(None, "op logs", f"not done after {_FINISH_TIMEOUT_S:.0f} s"))
        if self._gaps:
            folder = self.evidence.records_dir
            self.evidence.write(folder / records.GAPS_FILE, msgspec.json.encode(self._gaps))

    def _run(self) -> None:
        while (process := self._wanted.get()) is not None:
            try:
                self._keep(process)
            except (OSError, OpLogError) as error:
                self._gaps.append(Gap(process.rank, "op log", str(error)))
            self._make_room_in_memory(process)

    def _keep(self, process: RankProcess) -> None:
        known = self._kept.get(process.rank)
        if known is not None and _is_better(known, process):
            if process.attempt < known.attempt:
                self._keep_late(process)
            return  # or it is no member
        folder = self.evidence.records_of(process.rank)
        source = self.table.file_of(process, "ops")
        marks = self.table.file_of(process, "marks")
        has_either = source.exists() or marks.exists()
        if known is not None and known.attempt < process.attempt and has_either:
            self._set_aside(folder, known.attempt)
        has_marks = self._copy_marks(process.rank, marks, folder / records.MARKS_FILE)
        is_kept = self._copy(source, folder / records.OP_LOG_FILE)
        self._gaps += collect_disarmed(process.rank, self.table.file_of(process, "disarmed"))
        for kind, name in (("switched", records.SWITCH_FILE), ("inspect", records.INSPECT_FILE)):
            left = self.table.file_of(process, kind)
            if left.exists():
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(left, folder / name)
        copy_executed(self.table.file_of(process, "lines"), folder / records.EXECUTED_FILE)
        if is_kept or has_marks:
            self._kept[process.rank] = process

    def _keep_late(self, process: RankProcess) -> None:
        """Keep the logs of a rank whose end was seen after that of the next attempt's."""
        folder = self.evidence.records_of(process.rank)
        for kind, old in (("ops", records.OLD_OP_LOG_FILE), ("marks", records.OLD_MARKS_FILE)):
            target = folder / old.format(attempt=process.attempt)
            source = self.table.file_of(process, kind)
            if not target.exists() and source.exists() and self._copy(source, target):
                self._old.append((process.attempt, target))

    def _copy(self, source: Path, target: Path) -> bool:
        """Copy a log, in the place of those of the oldest attempts when there is no room."""
        while True:
            try:
                return self.op_logs.copy(source, target)
            except OpLogSpaceError:
                if not self._drop_oldest():
                    raise

    def _copy_marks(self, rank: int, source: Path, target: Path) -> bool:
        try:
            return self._copy(source, target)
        except (OSError, OpLogError) as error:  # what else the rank left is kept
            self._gaps.append(Gap(rank, "marks", str(error)))
            return False

    def _set_aside(self, folder: Path, attempt: int) -> None:
        for name, old in (
            (records.OP_LOG_FILE, records.OLD_OP_LOG_FILE),
            (records.MARKS_FILE, records.OLD_MARKS_FILE),
        ):
            last, aside = folder / name, folder / old.format(attempt=attempt)
            if last.exists():
                last.replace(aside)
                self.op_logs.moved(last, aside)
                self._old.append((attempt, aside))

    def _drop_oldest(self) -> bool:
        """Remove the log of the oldest attempt; return whether there was one."""
        if not self._old:
            return False
        self._old.sort()
        attempt, path = self._old.pop(0)
        path.unlink(missing_ok=True)
        self.op_logs.forget(path)
        limit = self.op_logs.max_bytes >> 20
        gap = Gap(None, "op logs", f"attempt {attempt} is left out: more than {limit} MiB in all")
        if gap not in self._gaps:
            self._gaps.append(gap)
        return True

    def _make_room_in_memory(self, process: RankProcess) -> None:
        """Remove what nobody will ask for any more: the job folder lies in memory.

        The last attempt before this one may still be looked at for its incident.
        """
        self._seen.append(process)
        for old in [one for one in self._seen if one.attempt < process.attempt - 1]:
            self._seen.remove(old)
            for kind in ("ops", "marks", "lines"):
                self.table.file_of(old, kind).unlink(missing_ok=True)


def _is_better(known: RankProcess, new: RankProcess) -> bool:
    """Whether what is kept of a rank says more: a later attempt, or a member of its group."""
    return (known.attempt, known.is_member) > (new.attempt, new.is_member)
