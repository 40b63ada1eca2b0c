"""What was seen, one JSON line each, appended to ``inspect-PID`` in the job folder."""

from __future__ import annotations

import json
import os
import threading

from ..calling.interrupts import let_through
from ..descriptors import Descriptor

MAX_BYTES = 16 << 20
# The last line says that there is no more; it must still fit.
_ROOM = 256


class Lines:
    """The file; written by any thread of the process, one line with one call."""

    def __init__(self, path: str, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._open()
        self._max_bytes = max_bytes
        self._used = os.fstat(self._file.fd).st_size
        # A signal handler of the job may issue an op in the thread that writes a line.
        self._lock = threading.RLock()
        self._owner = os.getpid()
        # Ops with NaN or Inf so far.
        self.not_finite = 0
        self.is_full = self._used > max_bytes - _ROOM

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = Descriptor(os.open(self._path, flags, 0o600), self._open)

    def put(self, value: dict[str, object]) -> None:
        """Append one line, unless the file is full; a full disk costs lines, not the job."""
        if self.is_full or os.getpid() != self._owner:
            return
        data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            if self.is_full:
                return
            if self._used + len(data) > self._max_bytes - _ROOM:
                self.is_full = True
                data = b'{"kind":"full","limit_bytes":%d}\n' % self._max_bytes
            try:
                self._used += os.write(self._file.fd, data)
            except OSError as error:
                let_through(error)
                return

    def close(self) -> None:
        """Close the file; what comes later is lost."""
        with self._lock:
            self._file.close()
            self.is_full = True
