"""How a process ended that somebody else reaps at once."""

from __future__ import annotations

import os
import select
import threading

import pytest

from whystuck.launch.processes.exits import open_pidfd, read_wait_status

_LATEST = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


@pytest.mark.skipif(_LATEST < (6, 15), reason="an older kernel forgets a process with its parent")
def test_read_wait_status_when_the_parent_reaps_meanwhile_then_the_status_is_not_lost() -> None:
    statuses = set()
    for _ in range(300):
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ)
        pidfd = open_pidfd(pid)
        assert pidfd is not None
        parent = threading.Thread(target=os.waitpid, args=(pid, 0))
        parent.start()
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll()
        statuses.add(read_wait_status(pid, pidfd))
        parent.join()
        os.close(pidfd)
    assert statuses == {3 << 8}
