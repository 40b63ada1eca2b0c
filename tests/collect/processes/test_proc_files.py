"""Files of processes in /proc: of one with an odd name, of its threads, and of one that ended."""

from __future__ import annotations

import os
import subprocess
import sys

from whystuck.collect.processes.proc_files import (
    is_alive,
    list_children,
    read_cgroups,
    read_name,
    read_start,
    read_stat,
    read_state,
    read_status,
)

_NAME = b"a) Z 1\n\xff("


def test_state_of_a_process_whatever_its_name_until_it_has_ended() -> None:
    # GIVEN a process that calls itself what looks like the next fields, and is no UTF-8
    code = f"open('/proc/self/comm', 'wb').write({_NAME!r}); print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout
        process.stdout.readline()
        pid = process.pid

        # THEN it and its main thread are read as they are
        assert read_state(pid) in {"S", "R"}
        assert read_state(f"{pid}/task/{pid}") in {"S", "R"}
        start = read_start(pid)
        assert start is not None
        assert start[0] == os.getpid()
        assert read_status(pid)["Pid"] == str(pid)
        assert read_name(pid).startswith("a) Z 1")
        assert pid in list_children(os.getpid())
        assert read_cgroups(pid) == read_cgroups(os.getpid())
        assert is_alive(pid)

        # AND as a zombie it has a state, and lives no more
        process.kill()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert read_state(pid) == "Z"
        assert read_start(pid) is None
        assert not is_alive(pid)
    # AND once it is reaped there is nothing
    assert read_stat(pid) == []
    assert read_state(pid) == ""
    assert read_status(pid).get("Pid") is None
    assert not is_alive(pid)
