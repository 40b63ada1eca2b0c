"""The process that tells signals for a group from others."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import threading

from whystuck.launch.link import make_pair
from whystuck.launch.processes.sentinel import _HAS_GOT, _QUESTION, _Watch


def test_sentinel_answers_where_its_caller_has_left_many_files_open() -> None:
    """`select` knows no descriptor above 1023; without an answer, a signal would arrive twice."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4096), limits[1]))
    ours, its = make_pair()
    high = fcntl.fcntl(its.fileno(), fcntl.F_DUPFD_CLOEXEC, 1500)
    thread = threading.Thread(target=_Watch(high, os.getpid()).run)
    thread.start()
    try:
        ours.settimeout(60)
        ours.send(_QUESTION.pack(_HAS_GOT, signal.SIGUSR2))
        its.close()
        assert ours.recv(1) == b"n"
    finally:
        ours.close()
        thread.join()
        os.close(high)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
