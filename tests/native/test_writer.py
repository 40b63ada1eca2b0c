"""The hooks of the extension, given what torch gives, on a ring that is read as the page says."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.native.torch_args import ALL_TO_ALL_BASE, BARRIER, BROADCAST, After, Before
from tests.probe.oplog.op_log_file import ASYNC, HOST, ISSUE_FAILED, NO_END, Op, read_op_log

from whystuck.probe import progress

torch = pytest.importorskip("torch")
extension = pytest.importorskip(
    "whystuck_native", reason="the extension is not built: `make native`"
)

CAPACITY = 256


class Log:
    """A ring that the extension writes, and a group with its hooks."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from whystuck.probe.oplog import backlog, log, native, ring

        c10d = SimpleNamespace(PreHookArgs=Before, PostHookArgs=After, HookOpName=_NAMES)
        c10d.Work = torch._C._distributed_c10d.Work
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", c10d)
        self.path = path
        self.log = log.OpLog(ring.Ring(str(path), CAPACITY, extension.Counter))
        self.backlog = self.log.backlog = self.log.completion.backlog = backlog.Backlog(self.log)
        self.native = native.Native(extension, self.log, self.backlog)
        self.writer = self.log.completion.native = self.native.writer
        self.writer.due_ns = 1 << 62
        self.left = backlog.HookedGroup("0")
        self.backlog.groups = [self.left]
        self.by_python: list[Any] = []
        pair: Any = (self.by_python.append, self.by_python.append)
        self.before, self.after = self.native.hook(self.left, pair, pair)

    def read(self) -> list[Op]:
        return read_op_log(self.path).ops


class _Value:
    def __init__(self, value: int) -> None:
        self.value = value


_NAMES = SimpleNamespace(
    ALLREDUCE=_Value(3), BROADCAST=_Value(BROADCAST), BARRIER=_Value(BARRIER),
    REDUCE_SCATTER=_Value(6), ALLGATHER=_Value(5),
)  # fmt: skip


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    made = Log(tmp_path / "ops-1", monkeypatch)
    yield made
    assert made.native.reason in ("", "wanted")


def run_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def issue(log: Log, before: Before, work: Any = object) -> None:
    log.before(before)
    log.after(After(before.op_id, work, before.name.value))


def test_frames_are_those_that_python_sees() -> None:
    def inner() -> None:
        seen = extension.frames()
        frame: Any = sys._getframe()
        places = []
        while frame is not None:
            places.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        assert [code for code, _ in seen] == [code for code, _ in places]
        assert seen[1:] == places[1:]

    inner()
    run_threads([threading.Thread(target=inner) for _ in range(3)])
    list(map(lambda call: call(), [inner, inner]))  # noqa: C417 - a frame that C has called
    exec("inner()", {"inner": inner})


def test_counter_counts_as_itertools_does() -> None:
    counter, expected = extension.Counter(1), itertools.count(1)
    assert [next(counter) for _ in range(5)] == [next(expected) for _ in range(5)]
    assert iter(counter) is counter
    assert next(extension.Counter(start=1 << 40)) == 1 << 40
    assert repr(counter) == "Counter" + repr(expected).removeprefix("count")


def test_ring_that_does_not_fit_then_refused() -> None:
    teacher, numbers = object(), extension.Counter(1)
    for offset, capacity in ((0, 11), (64, 10), (-8, 1), (4, 1), (0, 0), (0, 1 << 60), (2000, 1)):
        with pytest.raises(ValueError, match="does not fit"):
            extension.Writer(bytearray(960), offset, capacity, numbers, teacher, teacher)
    with pytest.raises(BufferError):
        extension.Writer(bytes(960), 0, 10, numbers, teacher, teacher)
    with pytest.raises(TypeError):
        extension.Writer(bytearray(960), 0, 10, itertools.count(1), teacher, teacher)


def test_op_then_the_record_has_all_that_python_would_tell(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress.COUNTS, "optimizer_steps", 41)
    tensor, other = torch.ones(3, 5), torch.ones(2, dtype=torch.int8)
    work = object()
    issue(log, Before(0, [tensor]), work)
    issue(log, Before(1, [tensor], op=BROADCAST, root=2, is_async=True), work)
    issue(log, Before(2, [], op=BARRIER), None)
    issue(log, Before(3, [other], op=5, outputs=[other, tensor]), work)
    issue(log, Before(4, [other], op=6, outputs=[other]), work)
    ops = log.read()
    assert [op.op for op in ops] == [
        "all_reduce", "broadcast", "barrier", "all_gather", "reduce_scatter",
    ]  # fmt: skip
    assert [op.seq for op in ops] == [op.number for op in ops] == [1, 2, 3, 4, 5]
    assert [op.flags for op in ops] == [HOST, HOST | ASYNC, NO_END, HOST, HOST | NO_END]
    assert ops[0].form["in"] == ops[0].form["out"] == [[3, 5]]
    assert ops[1].form["root"] == 2
    assert ops[3].form["out"] == [[2], [3, 5]]
    assert ops[3].form["dtypes"] == ["int8", "int8", "float32"]
    assert {op.step for op in ops} == {41}
    assert all(op.returned_ns >= op.enqueue_ns > 0 for op in ops)
    assert {op.frames[0][0] for op in ops} == {"issue"}
    assert ops[0].frames[1][0] == "test_op_then_the_record_has_all_that_python_would_tell"
    assert ops[1].frames[1][2] == ops[0].frames[1][2] + 1
    assert ops[0].thread["name"] == threading.current_thread().name
    assert ops[0].group["name"] == "0"
    assert log.by_python == []


def test_waited_for_op_is_over_when_its_thread_issues_the_next_one(log: Log) -> None:
    tensor = torch.ones(3)
    works = [object() for _ in range(3)]
    issue(log, Before(0, [tensor]), works[0])
    assert log.read()[0].done_ns == 0
    issue(log, Before(1, [tensor]), works[1])
    issue(log, Before(2, [tensor], is_async=True), works[2])
    first, second, third = log.read()
    assert first.done_ns == second.enqueue_ns
    assert second.done_ns == third.enqueue_ns
    assert third.done_ns == 0
    # Of the first two, nothing is to be asked.
    assert log.writer.pending_count == 1
    ((number, args),) = log.writer.take()
    assert (number, args.work) == (3, works[2])
    assert log.writer.take() == []


def test_newest_waited_for_op_of_each_thread_is_taken_once(log: Log) -> None:
    tensor = torch.ones(3)
    main, other = object(), object()
    thread = threading.Thread(target=issue, args=(log, Before(0, [tensor]), other))
    thread.start()
    thread.join()
    issue(log, Before(1, [tensor]), object())
    issue(log, Before(2, [tensor]), main)
    taken = {number: args.work for number, args in log.writer.take()}
    assert taken == {1: other, 3: main}
    assert log.writer.take() == []
    issue(log, Before(3, [tensor]), object())
    # Taken or not: it is over now.
    assert log.read()[2].done_ns == log.read()[3].enqueue_ns


def test_op_of_the_dispatcher_in_between_then_it_is_over_when_the_next_one_is_issued(
    log: Log,
) -> None:
    tensor = torch.ones(3)
    issue(log, Before(0, [tensor], op=6, outputs=[tensor]))
    group = log.native.learn_group("0")
    number = log.log.put(group, 1, 1, HOST, (1, time.monotonic_ns(), 0))
    log.log.returned(number, time.monotonic_ns(), None)
    issue(log, Before(1, [tensor], is_async=True), None)
    log.log.completion._take_new()
    first, second, third = log.read()
    assert second.done_ns == third.enqueue_ns
    assert second.enqueue_ns <= first.done_ns <= third.enqueue_ns
    assert third.done_ns == 0


def test_handles_that_are_not_taken_are_not_heaped_up(log: Log) -> None:
    tensor = torch.ones(3)
    gone = 0

    class Work:
        def __del__(self) -> None:
            nonlocal gone
            gone += 1

    for op_id in range(10_000):
        issue(log, Before(op_id, [tensor], is_async=True), Work())
    assert gone == 10_000 - 8192
    assert [number for number, _ in log.writer.take()] == list(range(10_000 - 8192 + 1, 10_001))
    log.writer.watches = False
    issue(log, Before(1, [tensor], is_async=True), Work())
    assert gone == 10_001


def test_op_that_raised_has_its_flag_when_that_is_sure(log: Log) -> None:
    tensor = torch.ones(3)
    log.before(Before(0, [tensor]))
    log.before(Before(1, [tensor]))
    log.after(After(1, object()))
    assert log.writer.open_count == 1
    ((op_id, code, _at, thread, is_passed, _),) = log.left.native.list_open(1 << 62)
    assert (op_id, code.co_name, thread, is_passed) == (
        0, "test_op_that_raised_has_its_flag_when_that_is_sure", 1, True,
    )  # fmt: skip
    log.backlog.flush(is_last=True)
    first, second = log.read()
    assert first.flags == HOST | ISSUE_FAILED
    assert first.returned_ns == second.enqueue_ns
    assert second.flags == HOST
    assert log.writer.open_count == 0
    # An op that is where it was issued may still come back.
    log.before(Before(2, [tensor]))
    log.backlog.flush(is_last=True)
    assert log.writer.open_count == 0
    assert log.read()[2].flags == HOST | ISSUE_FAILED


def test_more_ops_at_once_than_are_kept_then_python_takes_them(log: Log) -> None:
    tensor = torch.ones(3)

    def enter(op_id: int) -> None:
        log.before(Before(op_id, [tensor]))
        inside.wait()
        stay.wait()
        log.after(After(op_id, object()))

    inside, stay = threading.Barrier(65), threading.Event()
    threads = [threading.Thread(target=enter, args=(op_id,)) for op_id in range(64)]
    for thread in threads:
        thread.start()
    inside.wait()
    assert log.writer.open_count == 64
    late = Before(64, [tensor])
    log.before(late)
    assert log.by_python == [late]
    stay.set()
    for thread in threads:
        thread.join()
    assert log.writer.open_count == 0
    ops = log.read()
    assert sorted(op.number for op in ops) == list(range(1, 65))
    assert all(op.returned_ns for op in ops)
    assert len({op.thread["id"] for op in ops}) == 64


def test_op_that_the_dispatcher_records_is_left_to_it(log: Log) -> None:
    issue(log, Before(0, [torch.ones(3)], op=ALL_TO_ALL_BASE))
    issue(log, Before(1, [torch.ones(3)], op=200))
    assert log.read() == []
    assert log.by_python == []
    assert log.writer.take() == []


@pytest.mark.parametrize(
    "make",
    [lambda: torch.ones(3).to_sparse(), lambda: torch.nested.nested_tensor([torch.ones(2)])],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensor_that_has_no_plain_sizes_is_left_to_python(
    log: Log, make: Callable[[], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    before = Before(0, [make()])
    issue(log, before)
    assert log.by_python[0] is before
    assert log.read() == []
    assert capfd.readouterr() == ("", "")


def test_long_lists_of_tensors_are_told_apart_by_number_and_ends(log: Log) -> None:
    many = [torch.ones(at % 7 + 1) for at in range(200)]
    issue(log, Before(0, many))
    issue(log, Before(1, many[:-1]))
    issue(log, Before(2, many))
    first, second, third = log.read()
    assert first.form is third.form or first.form == third.form
    assert first.form["in_bytes"] - second.form["in_bytes"] == many[-1].numel() * 4
    wide = [torch.ones([1] * 40) for _ in range(16)]
    before = Before(3, wide)
    issue(log, before)
    assert log.by_python[0] is before


@pytest.mark.parametrize(
    ("field", "value"),
    [("op_id", 7), ("root", 3), ("async_op", True), ("input_tensors", [torch.ones(3)])],
)
def test_layout_is_another_then_the_extension_is_given_up(log: Log, field: str, value: Any) -> None:
    before = Before(0, [torch.ones(3)])
    setattr(before, field, value)
    issue(log, before)
    assert log.by_python[0] is before
    assert len(log.by_python) == 2
    assert not log.writer.is_trusted
    assert log.native.name() == "python"
    assert log.native.reason == "torch's arguments lie elsewhere"
    log.native.reason = "wanted"
    # And it stays so.
    issue(log, Before(1, [torch.ones(3)]))
    assert len(log.by_python) == 4
    assert log.read() == []


def test_pointers_that_point_nowhere_then_nothing_is_touched(log: Log) -> None:
    before = Before(0, [torch.ones(3)])
    before.c_inputs[:] = 0x10, 0x18, 0x18
    issue(log, before)
    assert log.native.reason == "torch's arguments lie elsewhere"
    assert log.by_python[0] is before
    log.native.reason = "wanted"


def test_other_object_than_torch_gives_then_given_up(log: Log) -> None:
    log.before(object())
    assert log.native.reason == "torch's arguments cannot be read"
    log.native.reason = "wanted"


def test_what_we_ask_raises_then_nothing_of_it_is_seen(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("broken")

    tensor = torch.ones(3)
    for name in ("learn_form", "learn_group", "is_user", "learn_site", "learn_thread"):
        original = getattr(log.native, name)
        setattr(log.native, name, fail)
        issue(log, Before(0, [tensor]))
        setattr(log.native, name, original)
    assert len(log.by_python) == 10
    monkeypatch.setattr(log.native, "hasten", fail)
    log.writer.due_ns = 0
    issue(log, Before(1, [tensor]))
    assert len(log.read()) == 1


def test_keyboard_interrupt_reaches_the_job(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(log.native, "learn_site", interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.before(Before(0, [torch.ones(3)]))


def test_look_into_ops_then_both_sides_are_called_with_the_record(log: Log) -> None:
    seen: list[tuple[Any, int]] = []
    log.left.native.look_before = log.left.native.look_after = lambda *call: seen.append(call)
    before = Before(0, [torch.ones(3)])
    issue(log, before)
    assert [number for _, number in seen] == [1, 1]
    assert seen[0][0] is before

    def stop(*_: Any) -> None:
        raise RuntimeError("asked for")

    log.left.native.look_before = stop
    with pytest.raises(RuntimeError, match="asked for"):
        log.before(Before(1, [torch.ones(3)]))
    del log.left.native.look_before
    log.before(Before(2, [torch.ones(3)]))


def test_forked_child_writes_nothing(log: Log) -> None:
    tensor = torch.ones(3)
    issue(log, Before(0, [tensor]))
    child = os.fork()
    if child == 0:
        issue(log, Before(1, [tensor]))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    issue(log, Before(1, [tensor]))
    assert [op.number for op in log.read()] == [1, 2]
    assert [op.seq for op in log.read()] == [1, 2]


def test_closed_then_nothing_is_written(log: Log) -> None:
    log.writer.is_open = False
    issue(log, Before(0, [torch.ones(3)]))
    assert log.read() == []
    assert log.by_python == []


def test_threads_at_once_then_no_record_is_lost_or_torn(log: Log) -> None:
    sys.setswitchinterval(1e-5)
    try:
        chosen = [torch.ones(extent) for extent in range(1, 5)]

        def work(first: int) -> None:
            for turn in range(500):
                issue(log, Before(first + turn, [chosen[turn % 4]], is_async=turn % 3 == 0))

        def take(others: list[threading.Thread]) -> None:
            while any(other.ident is None or other.is_alive() for other in others):
                log.writer.take()

        threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
        taker = threading.Thread(target=take, args=(threads,))
        run_threads([*threads, taker])
    finally:
        sys.setswitchinterval(0.005)
    whole = read_op_log(log.path)
    assert whole.torn == 0
    left = 2000 - sum(isinstance(one, Before) for one in log.by_python)
    assert [op.number for op in whole.ops] == list(range(left - CAPACITY + 1, left + 1))
    assert log.writer.open_count == 0


class Heap(ctypes.Structure):
    """``mallinfo2`` of glibc: what lies in the arenas, and what is mapped, of all threads."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    )

    @classmethod
    def count_bytes(cls) -> int:
        read = ctypes.CDLL(None).mallinfo2
        read.restype = cls
        found = read()
        return int(found.uordblks + found.hblkhd)


def test_million_ops_then_nothing_is_left_behind(log: Log) -> None:
    tensor, work = torch.ones(3), object()
    pairs = [(Before(op_id, [tensor]), After(op_id, work)) for op_id in range(64)]
    lone = [(Before(op_id, [tensor], is_async=True), After(op_id, work)) for op_id in range(64)]

    def run(turns: int) -> None:
        for turn in range(turns):
            for before, after in pairs if turn % 2 else lone:
                log.before(before)
                log.after(after)
            log.writer.take()

    watched = [tensor, work, log.native, log.writer, log.left.native, run.__code__, pairs[0][0]]
    watched += [progress.COUNTS, None, lone[0][1], pairs[5][1], log.left.native.before]
    seen = []
    for turns in (200, 1_000_000 // 64):
        run(turns)
        gc.collect()
        sizes = Heap.count_bytes(), 512 * sys.getallocatedblocks()
        seen.append(([sys.getrefcount(one) for one in watched], len(gc.get_objects()), sizes))
    (counts, objects, sizes), (counts_after, objects_after, sizes_after) = seen
    # None is counted by all that runs.
    at = watched.index(None)
    assert counts[:at] + counts[at + 1 :] == counts_after[:at] + counts_after[at + 1 :]
    assert abs(counts_after[at] - counts[at]) < 50
    assert objects_after - objects < 100
    # A byte for each op would be a megabyte. Resident pages come by the thousand, for others too.
    assert all(after - before < 600_000 for before, after in zip(sizes, sizes_after, strict=True))


def test_hooks_go_when_their_group_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Log(tmp_path / "ops-1", monkeypatch)
    made.log.on_inspector = None
    issue(made, Before(0, [torch.ones(3)]))
    del made
    gc.collect()
    assert all(type(one) is not extension.Hooked for one in gc.get_objects())
