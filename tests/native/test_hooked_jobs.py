"""The extension as torch calls it, where torch has hooks.

On torch's fake backend; `test_devices.py` has ops on devices.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.probe.job import PROBE_DIR
from tests.probe.oplog.op_log_file import read_op_log

torch = pytest.importorskip("torch")
pytest.importorskip("whystuck_native", reason="the extension is not built: `make native`")

pytestmark = [pytest.mark.slow]
if not hasattr(torch._C._distributed_c10d, "HookOpName"):
    pytest.skip("this torch has no hooks", allow_module_level=True)

HEAD = """
import json, mmap, os, random, resource, signal, sys, time
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
import whystuck_native
package = type(sys)("_whystuck_probe")
package.__path__ = [sys.argv[1]]
sys.modules["_whystuck_probe"] = package
from _whystuck_probe.oplog.hooks import Hooks
from _whystuck_probe.oplog.log import OpLog
from _whystuck_probe.oplog.ring import Ring

def record(path, capacity):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    log = OpLog(Ring(path, capacity, whystuck_native.Counter))
    hooks = Hooks(log, whystuck_native)
    assert hooks.name_recorder().startswith("native")
    log.start(1)
    hooks.install([("0", dist.group.WORLD)])
    return log, hooks
"""

KILLED = """
chance = random.Random(7)
for number in range(200):
    path = os.path.join(sys.argv[2], f"ops-{number}")
    told = open(os.path.join(sys.argv[2], f"told-{number}"), "w+b")
    told.truncate(16)
    counts = memoryview(mmap.mmap(told.fileno(), 16)).cast("q")
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        log, hooks = record(path, 1024)
        value = torch.ones(8)
        os.write(tell, b"x")
        while True:
            counts[0] += 1
            dist.all_reduce(value)
            counts[1] += 1
    os.read(ready, 1)
    wanted = chance.randrange(3000)
    while counts[1] < wanted:
        time.sleep(chance.random() * 0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready), os.close(tell)
"""


def test_killed_at_any_moment_then_at_most_the_last_record_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HEAD + KILLED, str(PROBE_DIR), str(tmp_path)]
    subprocess.run(command, check=True, timeout=250)
    lengths = []
    for number in range(200):
        log = read_op_log(tmp_path / f"ops-{number}")
        begun, returned = struct.unpack("<qq", (tmp_path / f"told-{number}").read_bytes())
        assert log.torn <= 1
        assert log.looked_ns == 0
        newest = log.ops[-1].number if log.ops else 0
        # What has come back is there; what was on its way may be.
        assert returned <= newest + log.torn <= begun <= returned + 1
        assert newest >= returned
        first = log.ops[0].number if log.ops else 1
        assert [op.number for op in log.ops] == list(range(first, newest + 1))
        assert all(op.returned_ns and op.form["op"] == "all_reduce" for op in log.ops[:-1])
        # Its thread has issued the next one.
        assert all(op.done_ns for op in log.ops[:-1])
        lengths.append(newest)
    assert sum(length > 100 for length in lengths) > 180


MILLION = """
log, hooks = record(os.path.join(sys.argv[2], "ops-1"), 1024)
value = torch.ones(8)
def run(calls):
    for _ in range(calls):
        dist.all_reduce(value)
run(50_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sys.getrefcount(value)
run(1_000_000)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sys.getrefcount(value)
log.completion.stop()
hooks.remove()
print(json.dumps([before, after, hooks.native.reason]))
"""


def test_million_ops_then_nothing_is_left_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HEAD + MILLION, str(PROBE_DIR), str(tmp_path)]
    done = subprocess.run(command, check=True, timeout=250, capture_output=True)
    before, after, reason = json.loads(done.stdout)
    assert reason == ""
    # A byte for each op would be a megabyte.
    assert after[0] - before[0] < 900
    # What the newest op holds.
    assert abs(after[1] - before[1]) <= 1
    assert read_op_log(tmp_path / "ops-1").ops[-1].number == 1_050_000


RAISING = """
log, hooks = record(os.path.join(sys.argv[2], "ops-1"), 64)
value = torch.ones(8)
for _ in range(100):
    try:
        dist.all_gather([value], value[:3])
    except Exception:
        pass
dist.all_reduce(value)
log.completion.stop()
"""


def test_issuing_raises_then_all_of_it_is_on_record(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HEAD + RAISING, str(PROBE_DIR), str(tmp_path)]
    subprocess.run(command, check=True, timeout=250)
    ops = read_op_log(tmp_path / "ops-1").ops
    assert ops[-1].op == "all_reduce"
    assert all(op.returned_ns for op in ops)
