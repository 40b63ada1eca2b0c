"""Ops on devices: their handles are neither asked nor held, and each op is on record."""

from __future__ import annotations

from pathlib import Path

from tests.nccl_like.building import Like
from tests.nccl_like.jobs import run
from tests.probe.oplog.op_log_file import ASYNC, HOST, NO_END, P2P

# A handle that is asked would block for longer than the test may take.
ISSUE = """
like.block(600_000)
for number in range(250):
    work = dist.all_reduce(like.make_tensor(1024), async_op=True)
    work.wait()
    del work
    dist.all_reduce(like.make_tensor(1024))
    out = like.make_tensor(1024)
    dist.all_gather_into_tensor(out, like.make_tensor(1024), async_op=True).wait()
    del out
    dist.barrier(async_op=True).wait()
    if number == 100:
        time.sleep(0.5)  # the thread that looks for ends has had its turns
tell(asked=like.asked(), handles=like.handles(), tensors=count_tensors())
"""


def test_device_ops_then_no_handle_is_asked_and_nothing_is_held(tmp_path: Path, like: Like) -> None:
    told, log = run(tmp_path, like, ISSUE)
    assert told == {"asked": 0, "handles": 0, "tensors": 0}
    assert [op.op for op in log.ops[:4]] == [
        "all_reduce",
        "all_reduce",
        "all_gather_base",
        "barrier",
    ]
    assert all(op.frames[0][1].endswith("train.py") for op in log.ops)
    assert len(log.ops) == 1000
    assert {op.flags & (NO_END | HOST) for op in log.ops} == {NO_END}
    assert all(op.returned_ns and not op.done_ns for op in log.ops)
    assert [bool(op.flags & ASYNC) for op in log.ops[:4]] == [True, False, True, True]


def test_batch_when_its_ops_have_no_handles_then_their_ends_are_unknown(
    tmp_path: Path, like: Like
) -> None:
    body = """
pg._start_coalescing(device)
pg.send([like.make_tensor(8)], 0, 0)
pg.recv([like.make_tensor(8)], 0, 0)
work = pg._end_coalescing(device)
work.wait()
del work
tell(asked=like.asked(), handles=like.handles(), tensors=count_tensors())
"""
    told, log = run(tmp_path, like, body)
    assert told == {"asked": 0, "handles": 0, "tensors": 0}
    assert [(op.op, op.flags & (P2P | NO_END), op.done_ns) for op in log.ops] == [
        ("send", P2P | NO_END, 0), ("recv", P2P | NO_END, 0),
    ]  # fmt: skip


def test_thread_without_python_frames_then_its_ops_are_on_record(
    tmp_path: Path, like: Like
) -> None:
    body = """
before = [thread.name for thread in threading.enumerate()]
like.reduce_in_thread(pg, like.make_tensor(8), 1000)
after = [thread.name for thread in threading.enumerate()]
tell(asked=like.asked(), handles=like.handles(), tensors=count_tensors(), same=before == after)
"""
    told, log = run(tmp_path, like, body)
    assert told == {"asked": 0, "handles": 0, "tensors": 0, "same": True}
    assert len(log.ops) == 1000
    assert all(op.frames == [] and op.returned_ns for op in log.ops)
    assert {op.thread["name"] for op in log.ops} == {"like_autograd"}


def test_thread_without_python_frames_then_its_ops_are_inspected(
    tmp_path: Path, like: Like
) -> None:
    (tmp_path / "checks.py").write_text(
        "seen = []\nclass Check:\n    def before(self, op):\n        seen.append(op.name)\n"
    )
    body = """
sys.path.insert(0, os.getcwd())
like.reduce_in_thread(pg, like.make_tensor(8), 1000)
tell(seen=len(sys.modules["checks"].seen), asked=like.asked())
"""
    told, _ = run(tmp_path, like, body, inspect="call:checks:Check")
    assert told["seen"] >= 1000
    assert told["asked"] == 0


def test_ops_on_the_host_then_their_ends_are_known_as_before(tmp_path: Path, like: Like) -> None:
    body = """
gloo = dist.new_group(backend="gloo")
value = torch.ones(8, device="cpu")
for _ in range(20):
    dist.all_reduce(value, group=gloo)
    dist.all_reduce(value, group=gloo, async_op=True).wait()
    dist.barrier(group=gloo)
time.sleep(0.1)
tell(done=1)
"""
    _, log = run(tmp_path, like, body)
    ops = [op for op in log.ops if op.group["backend"] == "gloo"]
    assert len(ops) == 60
    # Hooks give no tensor of a barrier, and do not tell where it is.
    assert all(op.flags & HOST for op in ops if op.op != "barrier")
    assert all(op.done_ns and not op.flags & NO_END for op in ops[:-1])
