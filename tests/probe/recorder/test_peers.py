"""What the probe knows of sends and receives, in real ranks that are stuck in them.

On gloo alone: on a device, no host waits in a send or in a receive.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import clean_environment
from tests.ports import find_port
from tests.probe.job import PROBE_DIR, job_dir

from whystuck.collect.recorder import ask_probe
from whystuck.evidence.live import PeerCount, PeerWait
from whystuck.parse.records import parse_peers
from whystuck.probe.recorder import peers

WORLD = 3
SCRIPT = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
values, large = torch.zeros(2), torch.zeros(1 << 20)
pair = dist.new_group([1, 2])
if rank == 0:
    dist.recv(values, src=1, tag=7)
if rank == 1:
    dist.send(values, dst=0, tag=7)
dist.barrier()
print("ready", flush=True)
if rank == 0:
    dist.recv(values, src=1, tag=7)  # here: 0
if rank == 1:
    works = [dist.isend(large, dst=2, group=pair), dist.irecv(values, src=2, group=pair)]
    for work in works:
        work.wait()  # here: 1
if rank == 2:
    dist.monitored_barrier()  # here: 2
"""
LINES = {
    int(line[-1]): number for number, line in enumerate(SCRIPT.splitlines(), 1) if "# here" in line
}


@pytest.fixture(scope="module")
def stuck(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[int, tuple[tuple[PeerWait, ...], tuple[PeerCount, ...]]]]:
    script = tmp_path_factory.mktemp("peers") / "train.py"
    script.write_text(SCRIPT)
    port = find_port()
    with job_dir() as folder:
        ranks = [_start(script, rank, port, folder) for rank in range(WORLD)]
        try:
            yield {
                rank: _ask(folder / f"probe-{process.pid}", folder / f"{rank}.json", rank)
                for rank, process in enumerate(ranks)
            }
        finally:
            for process in ranks:
                process.kill()
                process.communicate()


def _start(script: Path, rank: int, port: int, folder: Path) -> subprocess.Popen[bytes]:
    environment = clean_environment(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(WORLD),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        PYTHONPATH=str(PROBE_DIR / "site"),
        WHYSTUCK_JOB_DIR=str(folder),
    )
    return subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE)


def _ask(
    probe: Path, target: Path, rank: int
) -> tuple[tuple[PeerWait, ...], tuple[PeerCount, ...]]:
    """Ask until the rank is in the wait; the ranks get there some milliseconds apart."""
    deadline_s = time.monotonic() + 60
    while True:
        if probe.exists():
            ask_probe(probe, "peers", target)
            waits, counts = parse_peers(target.read_bytes(), rank=rank, artifact=target.name)
            lines = {frame.line for wait in waits for frame in wait.frames}
            if LINES[rank] in lines:
                return waits, counts
        assert time.monotonic() < deadline_s, "the rank never got there"
        time.sleep(0.1)


Stuck = dict[int, tuple[tuple[PeerWait, ...], tuple[PeerCount, ...]]]


def test_recv_names_peer_tag_and_how_many_came_before(stuck: Stuck) -> None:
    (wait,), counts = stuck[0]
    assert (wait.kind, wait.peer, wait.group, wait.tag) == ("recv", 1, "0", 7)
    assert (wait.count, wait.sure, wait.is_main) == (2, True, True)
    assert wait.site[0].line == LINES[0]
    assert [(one.kind, one.peer, one.count) for one in counts] == [("recv", 1, 2)]


def test_wait_for_one_of_two_handles_names_both_by_global_rank(stuck: Stuck) -> None:
    waits, counts = stuck[1]
    assert [(wait.kind, wait.peer, wait.sure) for wait in waits] == [
        ("send", 2, False),
        ("recv", 2, False),
    ]
    assert {wait.group for wait in waits} != {"0"}
    assert waits[0].frames[0].line == LINES[1]
    assert waits[0].site[0].line == LINES[1] - 2
    assert ("send", 0, 1) in [(one.kind, one.peer, one.count) for one in counts]


def test_monitored_barrier_waits_for_the_first_rank(stuck: Stuck) -> None:
    (wait,), counts = stuck[2]
    assert (wait.kind, wait.peer, wait.group, wait.sure) == ("barrier", 0, "0", True)
    assert counts == ()


def test_call_that_has_posted_nothing_yet_is_not_taken_for_the_op_before() -> None:
    import torch

    found: dict[str, object] = {}
    source = "def recv(lock):\n    lock.acquire()\n"
    file = Path(torch.__file__).parent.parent / peers._C10D_FILE
    exec(compile(source, file, "exec"), found)
    recv: Any = found["recv"]
    lock = threading.Lock()
    lock.acquire()

    def call() -> None:
        recv(lock)

    thread = threading.Thread(target=call)
    thread.start()
    assert thread.ident is not None
    op = peers._Op(peers.RECV, 1, 7, "0")
    op.thread_id = thread.ident
    line = call.__code__.co_firstlineno + 1
    peers._OPS.append(op)
    try:
        while sys._current_frames()[thread.ident].f_code.co_name != "recv":
            time.sleep(0.001)
        op.site = [("call", __file__, line - 1)]
        assert not [wait for wait in peers._list_waits(peers._Groups()) if wait["tag"] == 7]
        op.site = [("call", __file__, line)]
        (wait,) = [wait for wait in peers._list_waits(peers._Groups()) if wait["tag"] == 7]
        assert wait["sure"]
    finally:
        lock.release()
        thread.join()
        peers._OPS.remove(op)


def test_what_cannot_be_read_never_raises(tmp_path: Path) -> None:
    assert peers.post(peers.SEND, (), {}) is None
    assert peers.post(peers.RECV, (object(), None, "x"), {}) is None
    peers.keep_handle(None, 3)
    assert not peers.dump_peers(str(tmp_path / "missing" / "peers.json"))
