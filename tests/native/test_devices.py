"""Ops of groups on devices, by hooks of C and of Python: nothing of them is kept."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.native.test_writer import Log, torch
from tests.native.torch_args import BARRIER, After, Before
from tests.probe.oplog.op_log_file import ASYNC, HOST, NO_END

OPS = 1000


class Work:
    """A handle that may not be asked."""

    def is_completed(self) -> bool:
        raise AssertionError("it was asked")


def _make_hooks(log: Log, kind: str) -> tuple[Any, Any, Any]:
    from whystuck.probe.oplog import backlog, hooks

    left = backlog.HookedGroup("1", has_devices=True)
    log.backlog.groups.append(left)
    plain, looking = hooks._make_hooks(log.log, log.backlog, left)
    if kind == "python":
        return left, *plain
    return left, *log.native.hook(left, plain, looking)


@pytest.mark.parametrize("kind", ["native", "python"])
def test_ops_on_devices_then_no_tensor_and_no_handle_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = Log(tmp_path / "ops-1", monkeypatch)
    left, before, after = _make_hooks(log, kind)
    alive: list[weakref.ref[Any]] = []
    for op_id in range(OPS):
        tensor, work = torch.ones(4, device="meta"), Work()
        is_barrier = op_id % 4 == 3
        args = Before(op_id, [] if is_barrier else [tensor], is_async=True)
        if is_barrier:
            args = Before(op_id, [], op=BARRIER)
        told = After(op_id, work, args.name.value)
        before(args)
        after(told)
        alive += [weakref.ref(one) for one in (tensor, work, args, told)]
        del tensor, work, args, told
    gc.collect()
    assert [one for one in alive if one() is not None] == []
    assert log.backlog.calls == []
    assert not left.returned
    log.log.completion._take_new()
    assert log.log.completion._pending == []
    ops = log.read()
    assert ops[-1].number == OPS
    assert {op.flags & (NO_END | HOST) for op in ops} == {NO_END}
    assert {op.flags & ASYNC for op in ops if op.op == "all_reduce"} == {ASYNC}
    assert all(op.returned_ns and not op.done_ns for op in ops)


@pytest.mark.parametrize("kind", ["native", "python"])
def test_op_on_the_host_without_a_handle_then_its_end_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = Log(tmp_path / "ops-1", monkeypatch)
    _, before, after = _make_hooks(log, kind)
    before(Before(0, [torch.ones(4)], is_async=True))
    after(After(0, None, 3))
    log.backlog.flush()
    (op,) = log.read()
    assert op.flags == HOST | ASYNC | NO_END


def test_no_op_has_a_handle_then_python_compares_one_op_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "ops-1", monkeypatch)
    compare, compared = log.native.check_after, []

    def check_after(args: Any, raw: tuple[Any, ...]) -> bool:
        compared.append(args.op_id)
        return compare(args, raw)

    monkeypatch.setattr(log.native, "check_after", check_after)
    _, before, after = _make_hooks(log, "native")
    for op_id in range(10):
        before(Before(op_id, [torch.ones(4, device="meta")]))
        after(After(op_id, None))
    assert compared == [0]
    assert all(op.returned_ns and op.flags == NO_END for op in log.read())
    # Of ops on the host, a handle counts: where it is has not been seen yet.
    for op_id in range(10, 13):
        log.before(Before(op_id, [torch.ones(4)]))
        log.after(After(op_id, Work()))
    assert compared == [0, 10]
