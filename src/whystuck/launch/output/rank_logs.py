"""The logs of ranks: one for each rank and attempt, and for each process that claims a rank."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.evidence.records import LAUNCHER_LOG_FILE, LOG_FILE, OLD_LOG_FILE, TWIN_LOG_FILE
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.output.logfile import LogFile
from whystuck.launch.processes.rank_table import KEPT_ATTEMPTS, RankProcess, RankTable

_Key = tuple[int, int, int]


@dataclass
class RankLogs:
    """The log of the last attempt has the plain name; those before are renamed when it begins."""

    evidence: EvidenceFolder
    table: RankTable
    _logs: dict[_Key, LogFile] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Make the log of the command itself; nothing is opened."""
        node = self.evidence.round_dir / self.evidence.node
        self.launcher = LogFile(node / LAUNCHER_LOG_FILE)

    def of_pid(self, pid: int) -> LogFile:
        """Return the log of a process that the table knows; raises KeyError otherwise."""
        process = self.table.find(pid)
        if process is None:
            raise KeyError(pid)
        return self.find(process)

    def find(self, process: RankProcess) -> LogFile:
        """Return the log of a process, a new one where there is none yet."""
        key = _key_of(process)
        with self._lock:
            if key not in self._logs:
                self._set_aside(key)
                twin = TWIN_LOG_FILE.format(pid=key[2]) if key[2] else LOG_FILE
                self._logs[key] = LogFile(self.evidence.rank_dir(process.rank) / twin)
            return self._logs[key]

    def read_tail(self, process: RankProcess, most_bytes: int) -> bytes:
        """Return the end of the log of a process; nothing when it has none."""
        log = self._logs.get(_key_of(process))
        return b"" if log is None else log.read_tail(most_bytes)

    def copy_round(self, attempt: int, home: Path, most_bytes: int) -> bool:
        """Copy the logs of an attempt to where `find_round_files` looks for them in ``home``.

        Returns:
            Whether all of them are there; not when they have more bytes than ``most_bytes``.
        """
        size = 0
        wanted = [log for key, log in list(self._logs.items()) if key[1] == attempt]
        try:
            for log in (self.launcher, *wanted):
                folder = log.path.parent.relative_to(self.evidence.root)
                with suppress(FileNotFoundError):  # nothing was written to it
                    size += log.copy_to(home / folder)
                if size > most_bytes:
                    return False
        except OSError:
            return False
        return True

    def flush(self) -> None:
        """Write what is left of all."""
        for log in (self.launcher, *list(self._logs.values())):
            log.flush()

    def close(self) -> None:
        """Write what is left of all, and close them; what comes later opens them again."""
        for log in (self.launcher, *list(self._logs.values())):
            log.close()

    def _set_aside(self, new: _Key) -> None:
        for key in [key for key in self._logs if key[1] <= new[1] - KEPT_ATTEMPTS]:
            del self._logs[key]
        for (rank, attempt, pid), log in self._logs.items():
            if attempt < new[1] - 1:  # the incident of the attempt before may still ask
                log.forget_tail()
            if rank == new[0] and attempt < new[1] and not pid and log.path.name == LOG_FILE:
                log.move(log.path.with_name(OLD_LOG_FILE.format(attempt=attempt)))
                # It is opened again for what still comes; with many attempts, few files are open.
                log.close()


def _key_of(process: RankProcess) -> _Key:
    return process.rank, process.attempt, process.pid if process.is_twin else 0
