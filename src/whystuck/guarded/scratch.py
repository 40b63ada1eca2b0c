"""Folders for what a command keeps on the disk while it works."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

# What ends a command by default, without a look at its files; Python handles SIGINT itself.
_ENDING = (signal.SIGTERM, signal.SIGHUP)
# By folder, the process that made it: a forked worker removes nothing of its parent's.
_FOLDERS: dict[str, int] = {}


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a private folder for the time of the block.

    It is also removed when SIGTERM or SIGHUP ends the process, as they do afterwards. A process
    that handles or ignores these signals goes on to do so.

    Yields:
        The folder, with mode 0700.
    """
    with tempfile.TemporaryDirectory(prefix="whystuck-") as name:
        _FOLDERS[name] = os.getpid()
        caught = _catch()
        try:
            yield Path(name)
        finally:
            for number in caught:
                signal.signal(number, signal.SIG_DFL)
            del _FOLDERS[name]


def _catch() -> list[signal.Signals]:
    """Handle the signals that nobody handles; return them."""
    if threading.current_thread() is not threading.main_thread():
        return []
    caught = [one for one in _ENDING if signal.getsignal(one) is signal.SIG_DFL]
    for one in caught:
        signal.signal(one, _end)
    return caught


def _end(number: int, _frame: FrameType | None) -> None:
    for name, owner in list(_FOLDERS.items()):
        if owner == os.getpid():
            shutil.rmtree(name, ignore_errors=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
