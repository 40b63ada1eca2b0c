"""Keeps the marks of long jobs, of which the ring of a rank has the last steps alone.

From time to time, what is new in the ring of each rank is added to a file of the evidence folder,
as a file of marks of its own. A file that is full is followed by another one; when all of them
take more than a limit, the oldest are removed, and never a file of anybody else. When something
goes wrong with the disk, no more is kept, and the job goes on.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.collect.op_logs import OpLogError, read_op_log
from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.processes.rank_table import RankProcess, RankTable

FILE_BYTES = 10 * 1024 * 1024
TOTAL_BYTES = 512 * 1024 * 1024
# A ring has some 5,000 steps: it is read before half of it is new.
_EVERY_S, _LEAST_S = 20.0, 2.0
_MANY_MARKS = 8192
_FINISH_TIMEOUT_S = 5.0


@dataclass
class _Written:
    """The file of a rank that is added to, and the next mark to be kept of a process."""

    pid: int
    next_number: int = 1
    path: Path | None = None
    size: int = 0


@dataclass
class MarkHistory:
    """Adds what ranks have marked to files of at most ``file_bytes``, ``total_bytes`` in all."""

    evidence: EvidenceFolder
    table: RankTable
    file_bytes: int = FILE_BYTES
    total_bytes: int = TOTAL_BYTES
    gaps: list[Gap] = field(default_factory=list)
    _due_s: float = 0.0
    _every_s: float = _EVERY_S
    _written: dict[int, _Written] = field(default_factory=dict)
    _files: deque[Path] = field(default_factory=deque)
    _total: int = 0
    _count: int = 0
    _thread: threading.Thread | None = None
    _is_over: bool = False

    def look(self, now_s: float) -> None:
        """Keep what is new when it is time, in a thread of its own."""
        if self._is_over or now_s < self._due_s or (self._thread and self._thread.is_alive()):
            return
        is_first, self._due_s = not self._due_s, now_s + self._every_s
        if not is_first:
            self._thread = threading.Thread(target=self.keep_all, name="marks", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for what is being written; the last marks are kept with what the ranks left."""
        self._is_over = True
        if self._thread is not None:
            self._thread.join(_FINISH_TIMEOUT_S)

    def keep_all(self) -> None:
        """Add what is new of all ranks."""
        most = 0
        for process in self.table.processes():
            try:
                most = max(most, self._keep(process))
            except OpLogError:
                continue  # the end of the rank tells of it
            except OSError as error:
                self._is_over = True
                reason = f"no more are kept: {error.strerror or error}"
                self.gaps.append(Gap(process.rank, "marks of the whole run", reason))
                return
        slower = min(_EVERY_S, 2 * self._every_s)
        self._every_s = max(_LEAST_S, self._every_s / 4) if most > _MANY_MARKS else slower

    def _keep(self, process: RankProcess) -> int:
        """Add what is new of one rank; return how many marks that are."""
        from whystuck.pipeline import cut_new_marks

        source = self.table.file_of(process, "marks")
        if not source.exists():
            return 0
        known = self._written.get(process.rank)
        if known is None or known.pid != process.pid:
            known = self._written[process.rank] = _Written(process.pid)
        data = bytes(read_op_log(source))
        state, next_number = cut_new_marks(data, known.next_number)
        count = next_number - known.next_number
        if state:
            self._append(process.rank, known, state)
        known.next_number = next_number
        return count

    def _append(self, rank: int, known: _Written, state: bytes) -> None:
        if known.path is None or known.size + len(state) > self.file_bytes:
            self._count += 1
            folder = self.evidence.records_of(rank)
            folder.mkdir(parents=True, exist_ok=True)
            known.path = folder / records.MARK_HISTORY_FILE.format(number=self._count)
            known.size = 0
            # Never into a file that is there: it would be that of somebody else.
            known.path.open("xb").close()
            self._files.append(known.path)
        self._make_room(len(state), known.path)
        with known.path.open("r+b") as file:
            file.seek(known.size)
            try:
                file.write(state)
                file.flush()
            except OSError:
                file.truncate(known.size)
                raise
        known.size += len(state)
        self._total += len(state)

    def _make_room(self, size: int, current: Path) -> None:
        """Remove the oldest files of ours until there is room."""
        for path in list(self._files):
            if self._total + size <= self.total_bytes:
                return
            if path == current:
                continue
            self._files.remove(path)
            try:
                self._total -= path.stat().st_size
                path.unlink()
            except FileNotFoundError:
                continue
            for known in self._written.values():
                if known.path == path:
                    known.path, known.size = None, 0
