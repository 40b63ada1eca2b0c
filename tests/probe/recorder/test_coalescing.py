"""Collectives that torch drops after a failed coalescing manager, in real ranks with the probe.

On gloo alone: NCCL can coalesce, so that no manager fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launch.running import END
from tests.probe.job import artifact, copy_probe, job_dir, start_rank

from whystuck.diagnose.algorithms.stacks.frames import find_user_frame
from whystuck.evidence.live import FailedManager
from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.records import parse_skipped

HEAD = """\
import contextlib, sys
import torch, torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager, _world
dist.init_process_group("gloo")
CPU = torch.device("cpu")
values = torch.ones(2)
"""

# Each group meets another failure; what is lost is counted in the comment of its line.
LOSES = (
    HEAD
    + """
def fail(group):
    try:
        with _coalescing_manager(group, device=CPU):  # manager: device
            raise AssertionError("gloo can coalesce")
    except RuntimeError as error:
        print(error)

by_device, by_body, by_stack, by_del = (dist.new_group([0]) for _ in range(4))
fail(by_device)
optimizer = torch.optim.SGD([torch.nn.Parameter(values.clone())], lr=0.1)
optimizer.step()
for _ in range(3):
    print(dist.all_reduce(values, group=by_device))  # lost: device 3
dist.all_gather_into_tensor(torch.zeros(2), values, group=by_device)  # lost: device 1
work = dist.all_reduce(values, group=by_device, async_op=True)  # lost: device 1
for use in (lambda: work.wait(), lambda: fail(by_device)):
    try:
        use()
    except ValueError as error:
        print(error)

try:
    with _coalescing_manager(by_body):  # manager: body
        dist.all_reduce(values, group=by_body)
        raise KeyError("in the block")
except KeyError as error:
    dist.all_reduce(values, group=by_body)  # lost: body 1

with contextlib.suppress(RuntimeError), contextlib.ExitStack() as stack:
    stack.enter_context(_coalescing_manager(by_stack, CPU))  # manager: stack
dist.all_reduce(values, group=by_stack)  # lost: stack 1

manager = _coalescing_manager(by_del)
manager.__enter__()  # manager: del
dist.all_reduce(values, group=by_del)
del manager
dist.all_reduce(values, group=by_del)  # lost: del 1
print(sum(len(ops) for ops in _world.pg_coalesce_state.values()))
exec(sys.argv[1])
"""
)

# All of this is legal, or repaired by the job itself.
HEALTHY = (
    HEAD
    + """
for _ in range(3):
    with _coalescing_manager():
        dist.all_reduce(values)
        dist.all_reduce(values)
with _coalescing_manager(async_ops=True) as works:
    dist.all_reduce(values)
works.wait()
dist.all_reduce(values)

def fail():
    with contextlib.suppress(RuntimeError), _coalescing_manager(device=CPU):
        raise AssertionError("gloo can coalesce")

fail()
dist.barrier()
with _coalescing_manager():
    dist.all_reduce(values)
dist.all_reduce(values)

fail()
_world.pg_coalesce_state.pop(dist.group.WORLD)
dist.all_reduce(values)

fail()
_world.pg_coalesce_state.setdefault(dist.group.WORLD, [])
dist.all_reduce(values)
own = _world.pg_coalesce_state.pop(dist.group.WORLD)
dist.all_reduce(own[0].tensor)

fail()
dist.destroy_process_group()
dist.init_process_group("gloo")
dist.all_reduce(values)

manager = _coalescing_manager()
manager.__enter__()
dist.all_reduce(values)
manager.__exit__(None, None, None)
dist.all_reduce(values)
print("ended with", _world.pg_coalesce_state)
"""
    + END
)

COMPILED = (
    HEAD
    + """
def reduce(values):
    with _coalescing_manager():
        dist.all_reduce(values)
        dist.all_reduce(values)
    return values + 1

compiled = torch.compile(reduce, backend="eager", fullgraph=True)
print([compiled(values + step).tolist() for step in range(3)])
"""
    + END
)


def _run(
    tmp_path: Path, script: str, then: str = "", site: Path | None = None
) -> tuple[int, str, str, bytes | None]:
    """Run a script with the probe; return its end, what it wrote, and what the probe noted."""
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, then, site, script=script)
        out, err = process.communicate(timeout=100)
        noted = artifact(folder, "skipped", process)
        data = noted.read_bytes() if noted.exists() else None
        return process.returncode, out.decode(), err.decode(), data


def _run_alone(tmp_path: Path, script: str) -> tuple[int, str, str]:
    process = start_rank(tmp_path, "", script=script)
    out, err = process.communicate(timeout=100)
    return process.returncode, out.decode(), err.decode()


def find_line(site: tuple[Frame, ...]) -> int:
    """Return the line of the user; torch may call through a library that marks old functions."""
    frame = find_user_frame(site)
    assert frame is not None
    assert frame.file.endswith("train.py")
    return frame.line


def _marked(text: str) -> list[tuple[str, int]]:
    """List the lines with a mark: its text, and the number of the line."""
    lines = enumerate(LOSES.splitlines(), 1)
    return [
        (line.split(f"# {text}: ")[1], number) for number, line in lines if f"# {text}: " in line
    ]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("", id="end", marks=pytest.mark.slow),
        pytest.param("import os; os._exit(0)", id="os._exit"),
    ],
)
def lost(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[
    FailedManager
]:  # fmt: skip
    code, out, err, data = _run(tmp_path_factory.mktemp("lost"), LOSES, request.param)
    assert (code, data is not None) == (0, True), out + err
    return list(parse_skipped(data or b"", rank=0, artifact="a"))


def test_each_lost_call_is_noted_with_its_line(lost: list[FailedManager]) -> None:
    expected: dict[str, list[tuple[int, int]]] = {}
    for mark, line in _marked("lost"):
        way, count = mark.split()
        expected.setdefault(way, []).append((line, int(count)))
    managers = dict(_marked("manager"))

    assert [find_line(one.site) for one in lost] == [managers[way] for way in expected]
    for manager, calls in zip(lost, expected.values(), strict=True):
        assert [(find_line(call.site), call.count) for call in manager.calls] == calls
        assert manager.count == sum(count for _, count in calls)
        assert manager.members == {0}
    assert len({manager.group for manager in lost}) == len(lost)


def test_op_step_and_time_of_lost_calls_are_noted(lost: list[FailedManager]) -> None:
    calls = lost[0].calls

    assert calls[0].op == "all_reduce"
    assert calls[1].op.startswith("all_gather")
    assert (calls[0].first_step, calls[0].last_step) == (1, 1)
    assert calls[0].first_ns <= calls[0].last_ns <= calls[1].first_ns


def test_job_behaves_as_without_the_probe(tmp_path: Path) -> None:
    alone = _run_alone(tmp_path, LOSES.replace("exec(sys.argv[1])", "raise OSError('traceback')"))
    watched = _run(tmp_path, LOSES.replace("exec(sys.argv[1])", "raise OSError('traceback')"))

    assert alone[0] == 1
    assert "does not implement startCoalescing" in alone[1]
    assert "on IllegalWork object" in alone[1]
    assert watched[:3] == alone


SABOTAGE = {
    "at the start": (
        '    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]\n    w',
        "    1 / 0\n    w",
    ),
    "at a manager": ("        manager = _find_generator(frame)", "        1 / 0"),
    "at a list": ("        self._group = weakref.ref(group)", "        1 / 0"),
    "at a lost call": ("        if self._failure is None:", "        1 / 0"),
    "at writing": (
        "            found = [failure",
        "            1 / 0\n            found = [failure",
    ),
}


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(where, marks=() if where == "at a lost call" else pytest.mark.slow)
        for where in SABOTAGE
    ],
)
def test_job_is_not_harmed_by_notes_that_fail(tmp_path: Path, where: str) -> None:
    site = copy_probe(tmp_path, "recorder/coalescing.py", *SABOTAGE[where])
    code, out, err, data = _run(tmp_path, LOSES, site=site)

    assert code == 0, err
    assert "does not implement startCoalescing" in out
    assert "ZeroDivisionError" not in out + err
    assert data is None


def test_uncaught_error_of_a_manager_has_the_same_traceback(tmp_path: Path) -> None:
    script = HEAD + "with _coalescing_manager(device=CPU):\n    pass\n"
    alone, watched = _run_alone(tmp_path, script), _run(tmp_path, script)

    assert "startCoalescing" in alone[2]
    assert watched[:3] == alone
    assert watched[3] is None


def test_nothing_is_noted_of_legal_coalescing(tmp_path: Path) -> None:
    code, out, err, data = _run(tmp_path, HEALTHY)

    assert (code, out) == (0, "ended with {}\n"), err
    assert data is None


@pytest.mark.slow
def test_compiled_coalescing_stays_one_graph(tmp_path: Path) -> None:
    alone, watched = _run_alone(tmp_path, COMPILED), _run(tmp_path, COMPILED)

    assert alone[0] == 0, alone
    assert watched[:3] == alone
    assert watched[3] is None


def test_state_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    """A torch whose state is something else, or is in use already, is not touched."""
    script = HEAD.replace(
        "import torch, torch",
        "import torch; import torch.distributed.distributed_c10d as c10d\n"
        "print(type(c10d._world.pg_coalesce_state).__name__)\n"
        "class Kind(dict): pass\n"
        "c10d._world._pg_coalesce_state = Kind()\n"
        "coalescing = next(m for n, m in sys.modules.items() if n.endswith('.coalescing'))\n"
        "coalescing.watch()\n"
        "print(type(c10d._world.pg_coalesce_state).__name__)\n"
        "del c10d._world._pg_coalesce_state, c10d\n"
        "try:\n    coalescing.watch()\nexcept Exception as error:\n    print(error)\n"
        "sys.exit()\nimport torch",
    )
    code, out, err, _ = _run(tmp_path, script)

    assert (code, out) == (0, "_State\nKind\n"), err
