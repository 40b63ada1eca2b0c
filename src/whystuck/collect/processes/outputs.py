"""What a rank printed that is on its way out: the ends of the files that its output goes to."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Literal

from whystuck.collect.processes.target import Target
from whystuck.evidence import records

_OUTPUTS = (1, 2)
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_BYTES = 1 << 20
_TIMEOUT_S = 5.0
# What calls the main program of a script, and those of threads and child processes.
_PROGRAMS = {"<module>", "_bootstrap", "spawn_main"}


@dataclass(frozen=True)
class _File:
    """An output file, and the ranks that write to it."""

    path: Path
    ranks: frozenset[int]


def is_past_program(dump: bytes) -> bool:
    """Tell whether the main thread in py-spy's JSON has left its program and does not end."""
    try:
        threads = json.loads(dump)
        main = next(one["frames"] for one in threads if one["os_thread_id"] == one["pid"])
        names = {frame["name"].rpartition(".")[2] for frame in main}
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration):
        return False
    return bool(names) and not names & _PROGRAMS


def collect_outputs(targets: Sequence[Target], leaving: Collection[int], incident: Path) -> None:
    """Copy the ends of the files that ranks on their way out write to.

    They may tell of an exception. A file of several ranks is kept as that of their launcher.

    Args:
        targets: All ranks of this node.
        leaving: Those on their way out.
        incident: The folder of the incident.
    """
    # The file system of a log may not answer.
    copying = Thread(target=_copy, args=(targets, leaving, incident), daemon=True)
    copying.start()
    copying.join(_TIMEOUT_S)


def _copy(targets: Sequence[Target], leaving: Collection[int], incident: Path) -> None:
    begun: set[Path] = set()
    for file in _find_files(targets):
        if file.ranks.isdisjoint(leaving):
            continue
        node = next(target.node for target in targets if target.rank in file.ranks)
        if len(file.ranks) > 1:
            copy = incident / node / records.LAUNCHER_LOG_FILE
        else:
            copy = incident / node / f"{records.RANK_DIR_PREFIX}{min(file.ranks)}"
            copy /= records.LOG_FILE
        _copy_end(file.path, copy, "ab" if copy in begun else "wb")
        begun.add(copy)


def _find_files(targets: Sequence[Target]) -> list[_File]:
    """Find the regular files behind the outputs of ranks; a pipe or a terminal keeps nothing."""
    paths: dict[tuple[int, int], Path] = {}
    ranks: dict[tuple[int, int], set[int]] = {}
    for target in targets:
        for number in _OUTPUTS:
            path = Path(f"/proc/{target.pid}/fd/{number}")
            try:
                status = path.stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                key = (status.st_dev, status.st_ino)
                paths.setdefault(key, path)
                ranks.setdefault(key, set()).add(target.rank)
    return [_File(path, frozenset(ranks[key])) for key, path in paths.items()]


def _copy_end(source: Path, copy: Path, mode: Literal["ab", "wb"]) -> None:
    try:
        with os.fdopen(os.open(source, _FLAGS), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                return
            stream.seek(max(0, status.st_size - _MAX_BYTES))
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open(mode) as out:
                out.write(stream.read(_MAX_BYTES))
    except OSError:
        return
