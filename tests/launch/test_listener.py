"""The supervisor hears the probes of its own user, even where others can reach its socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.probe.kineto.fabric import wait_until

from whystuck.launch.link import make_pair
from whystuck.launch.listener import Listener
from whystuck.launch.output.logfile import LogFile
from whystuck.launch.output.rank_outputs import JobOutputs, RelayEnd
from whystuck.launch.output.streams import look_at_outputs
from whystuck.launch.processes.rank_table import RankTable

SAY = """
import os, socket, sys
uid = int(sys.argv[1])
client = socket.socket(socket.AF_UNIX)
os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
client.settimeout(60)
client.connect("supervisor.sock")
try:
    client.sendall(sys.argv[2].encode())
    client.recv(100)
except ConnectionError:
    pass
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_adds_no_rank_and_gets_no_stream(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    table = RankTable(tmp_path, "n1")
    ours, relay = make_pair()
    log = LogFile(tmp_path / "launcher")
    outputs = JobOutputs(look_at_outputs(), RelayEnd(ours), log, lambda _: log, lambda _: None)
    listener = Listener(tmp_path, table, outputs, lambda: None)
    listener.start()
    (tmp_path / "supervisor.sock").chmod(0o666)

    def say(uid: int, kind: str) -> None:
        message = {"type": kind, "pid": os.getpid(), "rank": 3, "world_size": 4, "streams": [1]}
        command = [sys.executable, "-c", SAY, str(uid), json.dumps(message)]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60)

    for kind in ("hello", "capture", "exception"):
        say(65534, kind)
    assert table.processes() == []
    relay.settimeout(0)
    with pytest.raises(BlockingIOError):
        relay.recv(1)  # nobody was given a stream

    say(0, "hello")
    wait_until(lambda: [one.rank for one in table.processes()] == [3])
    # What is no message, or too deep for a reader, ends one connection and not the listener.
    for hostile in ("[" * 60_000, "[]", '{"type": 1}', "\\xff"):
        command = [sys.executable, "-c", SAY, "0", hostile]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    say(0, "hello")
    wait_until(lambda: [one.rank for one in table.processes()] == [3])
    listener.stop()
    ours.close()
    relay.close()
