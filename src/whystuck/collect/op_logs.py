"""The op logs and marks of ranks: from the job folder, packed, into an evidence folder.

The file of a live rank is copied while it is written, and needs no word with the rank: that of a
rank that hangs, or was killed, is as good.
"""

from __future__ import annotations

import gzip
import os
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.collect.job_dirs import artifact_opened

MAX_RANKS = 64
MAX_TOTAL_BYTES = 256 * 1024 * 1024
_MAX_FILE_BYTES = 192 * 1024 * 1024
_MAGICS = b"WSOPS001", b"WSMARK01"
# Where the header says at which byte the ring begins; the values lie before it.
_RING_OFFSET = struct.Struct("<40xQ")
# A long ring takes a hundred megabytes while it is packed: not those of all ranks at once.
_PACKING = threading.BoundedSemaphore(2)


class OpLogError(Exception):
    """One sentence about why an op log was not copied."""


class OpLogSpaceError(OpLogError):
    """There is no room left for it."""


def read_op_log(path: Path) -> bytearray:
    """Return an op log, or marks, as one state: each record finds the values that it names.

    Args:
        path: The file, which a rank may be writing.

    Raises:
        OpLogError: It is too large, or no op log.
        OSError: It cannot be read.
    """
    with artifact_opened(path) as file:
        data = bytearray(file.read(_MAX_FILE_BYTES + 1))
        if len(data) > _MAX_FILE_BYTES:
            raise OpLogError(f"it has more than {_MAX_FILE_BYTES >> 20} MiB")
        is_known = data.startswith(_MAGICS)
        if not is_known and data.startswith(tuple(magic[:-3] for magic in _MAGICS)):
            raise OpLogError("it was recorded by another version of whystuck")
        if not is_known or len(data) < _RING_OFFSET.size:
            raise OpLogError("it does not begin as one")
        (ring_offset,) = _RING_OFFSET.unpack_from(data)
        if ring_offset > len(data):
            raise OpLogError("it is cut off")
        # What new records name was added before them, and maybe after our first look.
        file.seek(0)
        newer = file.read(ring_offset)
        data[: len(newer)] = newer
        return data


@dataclass
class OpLogKeeper:
    """Copies op logs, up to a number of ranks and bytes; may be used by several threads."""

    max_ranks: int = MAX_RANKS
    max_bytes: int = MAX_TOTAL_BYTES
    _sizes: dict[Path, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def copy(self, source: Path, target: Path) -> bool:
        """Copy one, over an older copy; return whether there was anything to copy.

        Raises:
            OpLogError: It was left out.
        """
        try:
            with _PACKING:
                data = gzip.compress(read_op_log(source), compresslevel=1, mtime=0)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise OpLogError(error.strerror or str(error)) from error
        with self._lock:
            self._check(target, len(data))
            self._sizes[target] = len(data)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.part-{os.getpid()}")
            part.write_bytes(data)
            part.replace(target)
        except OSError as error:
            self.forget(target)
            raise OpLogError(error.strerror or str(error)) from error
        return True

    def forget(self, target: Path) -> None:
        """Take note that a copy is gone."""
        with self._lock:
            self._sizes.pop(target, None)

    def moved(self, target: Path, renamed: Path) -> None:
        """Take note that a copy has another name now."""
        with self._lock:
            self._sizes[renamed] = self._sizes.pop(target, 0)

    def _check(self, target: Path, size: int) -> None:
        others = {path: kept for path, kept in self._sizes.items() if path != target}
        folders = {path.parent for path in others} | {target.parent}
        if len(folders) > self.max_ranks:
            raise OpLogError(f"those of {self.max_ranks} ranks are kept")
        if sum(others.values()) + size > self.max_bytes:
            raise OpLogSpaceError(f"more than {self.max_bytes >> 20} MiB in all")
