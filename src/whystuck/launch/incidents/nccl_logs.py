"""What NCCL writes with ``--nccl-debug``: a file for each process, of bounded size.

NCCL keeps its file open and cannot be told to begin another. What is too long loses its middle: the
beginning has the settings and the connections, the end has what went wrong.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from whystuck.evidence import records
from whystuck.evidence.private import make_private
from whystuck.launch.environment.nccl import NcclOptions, nccl_environment
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.processes.rank_table import RankTable

MAX_FILE_BYTES = 64 << 20
_HEAD_BYTES = 4 << 20
_TAIL_BYTES = 28 << 20
# What goes into each incident.
_SHOWN_HEAD_BYTES = 128 << 10
_SHOWN_TAIL_BYTES = 256 << 10
_LOOK_EVERY_S = 5.0
_FOLDER = "nccl"
_NAME = re.compile(r".+\.(\d+)\.txt")
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 1 << 16


class NcclLogs:
    """The files of one round on this node."""

    def __init__(
        self,
        evidence: EvidenceFolder,
        options: NcclOptions,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        """Decide on NCCL's variables, and make the place for its files."""
        self._evidence = evidence
        self._folder = evidence.round_dir / evidence.node / _FOLDER
        self._is_on = options.debug is not None
        self._say = say
        self._cut: set[Path] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        made = nccl_environment(options, environment, self._folder)
        self.variables = made.variables
        for name in made.replaced:
            say(f"whystuck: `{name}` of the environment gives way to the option\n")
        if self._is_on:
            with suppress(OSError):
                # NCCL writes to the console when it cannot open its file.
                self._folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Look at the size of the files from time to time, in a thread."""
        if self._is_on:
            self._thread = threading.Thread(target=self._watch, name="nccl logs", daemon=True)
            self._thread.start()

    def keep(self, incident: Path, wanted: Mapping[int, int], others: Collection[int]) -> None:
        """Copy the beginnings and ends of the files to an incident, to the folders of their ranks.

        Args:
            incident: The folder of the incident.
            wanted: The ranks of the processes that the incident is about, by pid.
            others: Processes that are ranks too, whose files are left out.
        """
        for path, pid in self._list():
            if pid not in wanted and pid in others:
                continue
            node = incident / self._evidence.node
            target = node / _rank_name(wanted.get(pid, -1), path, 0, 0)
            with suppress(OSError):
                data = _read_ends(path, _SHOWN_HEAD_BYTES, _SHOWN_TAIL_BYTES)
                if data:
                    self._evidence.write(target, data)

    def close(self, ranks: Mapping[int, tuple[int, int]]) -> None:
        """Move the files to the folders of their ranks, and cut what is too long.

        Args:
            ranks: (rank, attempt) of each process that said it is a rank.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        last = max((attempt for _, attempt in ranks.values()), default=0)
        node = self._folder.parent
        for path, pid in self._list():
            make_private(path)
            with suppress(OSError):
                if path.stat().st_size > MAX_FILE_BYTES:
                    self._evidence.write(path, _read_ends(path, _HEAD_BYTES, _TAIL_BYTES))
                if pid in ranks:
                    rank, attempt = ranks[pid]
                    target = node / _rank_name(rank, path, attempt, last)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)
        if self._is_on:
            with suppress(OSError):
                self._folder.rmdir()

    def bound(self) -> None:
        """Take the middle out of files that are too long, while NCCL writes to them."""
        for path, _ in self._list():
            try:
                size = path.stat().st_size
                if size <= MAX_FILE_BYTES:
                    continue
                is_cut = _punch(path, _HEAD_BYTES, size - _TAIL_BYTES)
            except OSError:
                continue
            if path not in self._cut:
                self._cut.add(path)
                self._tell(path, is_cut=is_cut)

    def _tell(self, path: Path, *, is_cut: bool) -> None:
        limit = MAX_FILE_BYTES >> 20
        what = "its middle is dropped" if is_cut else "it cannot be cut on this file system"
        text = f"NCCL has written more than {limit} MiB to {path}; {what}"
        self._evidence.note(f"{text}.")
        self._say(f"whystuck: {text}\nhint: `--nccl-debug INIT,NET` asks for less\n")

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            self.bound()

    def _list(self) -> Iterator[tuple[Path, int]]:
        """Yield the files and the processes that wrote them, by name."""
        if not self._is_on:
            return
        try:
            paths = sorted(self._folder.iterdir())
        except OSError:
            return
        for path in paths:
            if match := _NAME.fullmatch(path.name):
                yield path, int(match[1])


def list_ranks(table: RankTable) -> dict[int, tuple[int, int]]:
    """Return (rank, attempt) of each process that said it is a rank, by pid."""
    return {
        process.pid: (process.rank, process.attempt)
        for attempt in range(table.attempt + 1)
        for process in table.processes(attempt)
    }


def _rank_name(rank: int, path: Path, attempt: int, last: int) -> str:
    """Return where the file of a rank goes, or that of a process nobody knows."""
    if rank < 0:
        return f"{_FOLDER}/{path.name}"
    name = "nccl.txt" if attempt == last else f"nccl-attempt-{attempt}.txt"
    return f"{records.RANK_DIR_PREFIX}{rank}/{name}"


def _read_ends(path: Path, head: int, tail: int) -> bytes:
    """Read a file, or the beginning and the end of a long one, in whole lines."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size <= head + tail:
            return file.read()
        first = file.read(head)
        file.seek(size - tail)
        last = file.read(tail)
    first = first[: first.rfind(b"\n") + 1]
    last = last[last.find(b"\n") + 1 :]
    left = size - len(first) - len(last)
    return first + f"whystuck: {left} bytes are left out here\n".encode() + last


def _punch(path: Path, start: int, end: int) -> bool:
    """Free the disk below a part of a file; its length, and where others write, stay."""
    start, end = -(-start // _BLOCK) * _BLOCK, end // _BLOCK * _BLOCK
    if end <= start:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    with path.open("r+b") as file:
        mode = _PUNCH_HOLE | _KEEP_SIZE
        return bool(libc.fallocate(file.fileno(), mode, start, end - start) == 0)
