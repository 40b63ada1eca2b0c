"""The dumps that torch itself writes, as NCCL does on a timeout: where they go, and keeping them.

Torch overwrites the file of a rank at each dump, so an incident gets the files that were written
for it, and the next attempt of the launcher finds the place empty.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from whystuck.evidence import records
from whystuck.evidence.private import make_private
from whystuck.guarded.folders import read_file
from whystuck.launch.environment.recorder import RecorderSettings, recorder_environment
from whystuck.launch.incidents.folder import EvidenceFolder

_FOLDER = "recorder"
_PREFIX = "rank_"
# What the probe puts before the name when the launcher has started the ranks anew.
_ATTEMPT = r"attempt-(\d+)_"
_NEVER = 1 << 63
_MAX_DUMP_BYTES = 256 << 20


class TorchDumps:
    """The files ``PREFIX<rank>`` of one round on this node."""

    def __init__(
        self, evidence: EvidenceFolder, settings: RecorderSettings, say: Callable[[str], None]
    ) -> None:
        """Decide on the variables of the recorder, and make the place for its dumps."""
        self._node = evidence.node
        self._folder = evidence.round_dir / evidence.node / _FOLDER
        ours = str(self._folder / _PREFIX)
        made = recorder_environment(settings, os.environ, ours)
        self.variables = made.variables
        self._is_ours = made.dump_prefix == ours
        self._prefix = Path(made.dump_prefix).absolute()
        # In a place of the user's there may be dumps of other jobs.
        self._began_ns = 0 if self._is_ours else time.time_ns()
        for name in made.overruled:
            say(f"whystuck: `{name}` is set in the environment, and its option is not used\n")
        if self._is_ours:
            with suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)

    def keep(self, incident: Path, before_ns: int | None = None) -> bool:
        """Move the dumps of this round to an incident; copy them from a place of the user's.

        ``before_ns`` leaves the dumps of a later attempt where they are. Returns whether there
        were any.
        """
        found = self._find(before_ns)
        for rank, path in found:
            target = incident / self._node / f"{records.RANK_DIR_PREFIX}{rank}"
            with suppress(OSError):
                target.mkdir(parents=True, exist_ok=True)
                take = shutil.move if self._is_ours else _copy
                take(str(path), str(target / records.FR_TORCH_FILE))
                make_private(target / records.FR_TORCH_FILE)
        return bool(found)

    def close(self) -> None:
        """Remove the place when nothing was written to it."""
        with suppress(OSError):
            if self._is_ours:
                self._folder.rmdir()

    def _find(self, before_ns: int | None) -> list[tuple[int, Path]]:
        """Return (rank, file), those of later attempts last."""
        found = []
        name = re.compile(rf"(?:{_ATTEMPT})?{re.escape(self._prefix.name)}(\d+)")
        with suppress(OSError):
            for path in self._prefix.parent.iterdir():
                match = name.fullmatch(path.name)
                if match and self._began_ns <= _written_ns(path) <= (before_ns or _NEVER):
                    found.append((int(match[2]), int(match[1] or 0), path))
        return [(rank, path) for rank, _, path in sorted(found)]


def _copy(source: str, target: str) -> None:
    """Copy a dump from a place of the user's; raises OSError.

    Where all may make files, as in ``/tmp``, only one of this user's own counts.
    """
    parent, _, name = source.rpartition("/")
    folder = os.open(parent or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_open = os.fstat(folder).st_mode & stat.S_IWOTH
        data, _ = read_file(folder, name, _MAX_DUMP_BYTES, uid=os.geteuid() if is_open else -1)
    finally:
        os.close(folder)
    Path(target).write_bytes(data)


def _written_ns(path: Path) -> int:
    """Return when a plain file was last written to, -1 when there is none."""
    try:
        status = path.lstat()
    except OSError:
        return -1
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else -1
