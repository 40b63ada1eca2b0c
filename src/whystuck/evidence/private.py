"""Files that only their owner may read: evidence, logs and traces have secrets of jobs in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UMASK = 0o077
FILE_MODE = 0o600


@contextmanager
def private_files() -> Iterator[int]:
    """Make all that this process makes in the block private: folders 0700, files 0600.

    The umask is that of the whole process, with its threads and what they start; what belongs to
    the user has to be started with the umask that the block gets.

    Yields:
        The umask of the user.
    """
    before = os.umask(UMASK)
    try:
        yield before
    finally:
        os.umask(before)


def make_private(path: Path) -> None:
    """Give a file 0600 that the job has made in a folder of ours, with its own umask.

    A link is not followed, and what is no file of ours stays as it is.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError):
        descriptor = os.open(path, flags)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.fchmod(descriptor, FILE_MODE)
        finally:
            os.close(descriptor)
