"""The end of a trace on demand, from which on the thread that trains notes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from tests.agent.ondemand.nodes import node, states_of
from tests.probe.job import read_until_trained
from tests.probe.kineto.fabric import fabric, wait_until
from tests.probe.kineto.test_client import LONG, TRAIN, end, start, wait_for_window

from whystuck.evidence.agent import TraceRequest, TraceState
from whystuck.probe.kineto import folder as kineto_folder
from whystuck.probe.kineto.pause import Pause, Plan, read_plan

# It looks at what the probe sees, and is told what to print at the end.
FIND = "import sys\nlibrary = sys.modules['_whystuck_probe.kineto.client']._MADE[-1]._library\n"
FIRST = "PROFILE_START_ITERATION=0"
# No optimizer, and no op that takes long: a window can only be ended between two lines.
NO_STEPS = TRAIN.replace("    optimizer.step()\n", "")
SEEN_BY_OWN_PROFILER = """
with torch.profiler.profile() as mine:
    layer(torch.ones(4, 16))
print(sum(event.key == "aten::linear" for event in mine.key_averages()), flush=True)
"""


def wait_for_trace(folder: Path, name: str) -> None:
    """Wait until Kineto has written a trace."""
    wait_until(lambda: [*folder.glob(f"{name}_*.json")])


def read_steps(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the ops of the layer in a trace, one for each step."""
    (file,) = folder.glob(f"{name}_*.json")
    events: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
    return [event for event in events if event["name"] == "aten::linear"]


def test_steps_after_those_that_are_wanted_are_not_noted_and_all_is_as_before(
    tmp_path: Path,
) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        (served.folder / f"trace-{process.pid}").write_text("0 4 0\n")
        # More than are told, so that there is a time to pause in.
        served.ask(FIRST, "ACTIVITIES_ITERATIONS=300", file=tmp_path / "a.json")
        wait_until(lambda: [*tmp_path.glob("a_*.json")])
        (served.folder / f"trace-{process.pid}").unlink()
        served.ask(FIRST, "ACTIVITIES_ITERATIONS=40", file=tmp_path / "b.json")
        wait_until(lambda: [*tmp_path.glob("b_*.json")])
        then = FIND + "step(); assert library.is_noting" + SEEN_BY_OWN_PROFILER
        assert end(process, then)[:2] == (0, b"1\n")
    assert 4 <= len(read_steps(tmp_path, "a")) <= 6
    assert len(read_steps(tmp_path, "b")) >= 40


@pytest.mark.slow
def test_window_of_a_job_without_steps_ends_in_time_and_it_goes_on_by_itself(
    tmp_path: Path,
) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder, NO_STEPS)
        read_until_trained(process)
        begin_ms = int(time.time() * 1000) + 3000
        mark = served.folder / f"trace-{process.pid}"
        mark.write_text(f"{(begin_ms + 200) * 1_000_000} 0 0\n")
        served.ask(
            f"PROFILE_START_TIME={begin_ms}",
            "ACTIVITIES_WARMUP_PERIOD_SECS=0",
            "ACTIVITIES_DURATION_MSECS=3000",
            file=tmp_path / "a.json",
        )
        wait_until(lambda: [*tmp_path.glob("a_*.json")])
        mark.unlink()
        then = FIND + (
            "until_s = time.monotonic() + 60\n"
            "while not library.is_noting and time.monotonic() < until_s: time.sleep(0.01)\n"
            "assert library.is_noting"
        )
        assert end(process, then + SEEN_BY_OWN_PROFILER)[:2] == (0, b"1\n")
    times_us = [event["ts"] for event in read_steps(tmp_path, "a")]
    # A busy machine takes its time between two lines, but not seconds.
    assert 0 < max(times_us) - min(times_us) < 2_000_000


def test_own_profiler_and_a_forked_child_see_all_while_nothing_is_noted(tmp_path: Path) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        (served.folder / f"trace-{process.pid}").write_text("0 1 0\n")
        served.ask(LONG, "ACTIVITIES_WARMUP_PERIOD_SECS=0", file=tmp_path / "a.json")
        wait_for_window(served)
        then = FIND + (
            "while not library.is_collecting: step()\n"
            "while library.is_noting: step()\n"
            "child = os.fork()\n"
            "if child == 0: os._exit(10 + library.is_noting)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)"
        )
        code, out, _ = end(process, then + SEEN_BY_OWN_PROFILER)
    assert (code, out) == (0, b"11\n1\n")


def test_thread_whose_ops_are_not_noted_anyway_stays_so(tmp_path: Path) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        (served.folder / f"trace-{process.pid}").write_text("0 1 0\n")
        served.ask(LONG, "ACTIVITIES_WARMUP_PERIOD_SECS=0", file=tmp_path / "a.json")
        wait_for_window(served)
        then = FIND + (
            "torch.autograd._enable_record_function(False)\n"
            "while not library.is_collecting: step()\n"
            "for _ in range(9): step()\n"
            "print(library.is_noting, flush=True)"
        )
        assert end(process, then)[:2] == (0, b"False\n")


# Also looks at the ops of all threads, for as long as the job likes.
OBSERVER = """
observer = torch.profiler.ExecutionTraceObserver().register_callback("ops.json")
observer.start()
assert library.is_collecting
"""


def test_observer_of_the_job_is_not_paused_for_longer_than_a_trace_is_there(
    tmp_path: Path,
) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        mark = served.folder / f"trace-{process.pid}"
        mark.write_text("0 1 0\n")
        then = (
            FIND
            + OBSERVER
            + (
                "while library.is_noting: step()\n"
                f"os.unlink({str(mark)!r})\n"
                "while not library.is_noting: step()\n"
                "for _ in range(9): step()\n"
                "assert library.is_noting and library.is_collecting\n"
                # From here on a trace comes to what looks already.
                f"open({str(mark)!r}, 'w').write('0 2 0')\n"
                "pause = sys.modules['_whystuck_probe.kineto.client']._MADE[-1]._pause\n"
                "while pause._given_up is None: step()\n"
                "for _ in range(9): step()\n"
                "print(library.is_noting, flush=True)\n"
                "observer.stop(); step()"
            )
        )
        assert end(process, then)[:2] == (0, b"True\n")


# All Python that runs for long does so in a backward pass, and so do the steps.
IN_BACKWARD = """
import os, select, sys, time
import torch
layer = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
def after(gradient):
    optimizer.step()
    until_s = time.monotonic() + 0.005
    while time.monotonic() < until_s: pass
layer.bias.register_post_accumulate_grad_hook(after)
def step():
    layer(torch.ones(4, 16)).sum().backward()
    optimizer.zero_grad()
print("trained", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    step()
exec(sys.stdin.read())
"""
UNTIL_NOTING = """
until_s = time.monotonic() + 60
while not library.is_noting and time.monotonic() < until_s: step()
for _ in range(9): step()
assert library.is_noting
"""


@pytest.mark.parametrize("word", ["{end_ns} 0 0", "0 4 0"])
@pytest.mark.slow
def test_steps_in_a_backward_pass_are_all_noted_after_the_trace(tmp_path: Path, word: str) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder, IN_BACKWARD)
        read_until_trained(process)
        mark = served.folder / f"trace-{process.pid}"
        for name in "ab":
            begin_ms = int(time.time() * 1000) + 3000
            mark.write_text(word.format(end_ns=(begin_ms + 200) * 1_000_000))
            times = (f"PROFILE_START_TIME={begin_ms}", "ACTIVITIES_DURATION_MSECS=1200")
            steps = (FIRST, "ACTIVITIES_ITERATIONS=200")
            served.ask(*(times if "end" in word else steps), file=tmp_path / f"{name}.json")
            wait_for_trace(tmp_path, name)
            mark.unlink()
        assert end(process, FIND + UNTIL_NOTING + SEEN_BY_OWN_PROFILER)[:2] == (0, b"1\n")
    assert len(read_steps(tmp_path, "a")) >= 4
    assert len(read_steps(tmp_path, "b")) >= 4


@pytest.mark.slow
def test_own_profiler_of_all_threads_is_not_paused_at_the_end_of_a_window(tmp_path: Path) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        begin_ms = int(time.time() * 1000) + 3000
        mark = served.folder / f"trace-{process.pid}"
        mark.write_text(f"{(begin_ms + 2000) * 1_000_000} 0 0\n")
        served.ask(
            f"PROFILE_START_TIME={begin_ms}",
            "ACTIVITIES_DURATION_MSECS=2100",
            file=tmp_path / "a.json",
        )
        wait_for_window(served)
        then = FIND + (
            "while not library.is_collecting: step()\n"
            "config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)\n"
            "with torch.profiler.profile(experimental_config=config) as mine:\n"
            f"    while time.time() < {begin_ms / 1000 + 3.5}: step()\n"
            "    for _ in range(9): step()\n"
            "    assert library.is_noting\n"
        )
        assert end(process, then)[:2] == (0, b"")


class Switch:
    """A library without torch: what looks, and whether ops are noted."""

    is_collecting = is_in_backward = False
    is_noting = True

    def set_noting(self, *, is_on: bool) -> None:
        self.is_noting = is_on


def make_pause(plans: list[Plan | None]) -> tuple[Switch, Pause]:
    switch = Switch()
    return switch, Pause(cast("Any", switch), lambda: plans[-1])


def test_end_of_a_window_that_was_dropped_does_not_end_the_next_one() -> None:
    old = Plan(time.time_ns() + 300_000_000, 0, 0, 1)
    later = Plan(time.time_ns() + 60_000_000_000, 0, 0, 2)
    plans: list[Plan | None] = [old]
    switch, pause = make_pause(plans)
    pause.look(old)
    plans.append(later)
    pause.look(later)
    switch.is_collecting = True
    wait_until(lambda: time.time_ns() > old.end_ns + 200_000_000)
    pause.after_step(1, is_collecting=True)
    assert switch.is_noting


def test_thread_that_ended_in_a_pause_does_not_spoil_later_traces() -> None:
    plans: list[Plan | None] = [Plan(0, 3, 0, 1)]
    switch, pause = make_pause(plans)
    thread = threading.Thread(target=pause.pause)
    thread.start()
    thread.join()
    assert pause._paused
    switch.is_noting = True
    pause.look(plans[-1])
    assert not pause._paused


def test_switch_that_somebody_sets_back_after_the_pause_is_set_anew() -> None:
    switch, pause = make_pause([Plan(0, 1, 0)])
    switch.is_collecting = True
    pause.after_step(1, is_collecting=True)
    pause.after_step(2, is_collecting=True)
    assert not switch.is_noting
    switch.is_collecting = False
    pause.after_step(3, is_collecting=False)
    switch.is_noting = False
    pause.after_step(4, is_collecting=False)
    assert switch.is_noting


@pytest.mark.parametrize(
    "word", ["", "x", "1 2", "1 2 3 4", "-1 0 0", "0 0 1e3", "9" * 200, "0 1 \xff"]
)
def test_word_that_is_no_plan_is_none(tmp_path: Path, word: str) -> None:
    path = tmp_path / "trace-1"
    path.write_text(word)
    assert read_plan({str(path), str(tmp_path / "missing")}) is None


def test_plan_is_found_in_either_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").write_text("5 3 17\n")
    plan = read_plan({str(tmp_path / "a"), str(tmp_path / "b")})
    assert plan is not None
    assert (plan.end_ns, plan.iterations, plan.end_count) == (5, 3, 17)


@pytest.mark.parametrize(
    ("plan", "count", "end_count"),
    [
        pytest.param(Plan(0, 3, 17), 14, 17, id="as told"),
        pytest.param(Plan(0, 3, 17), 20, 23, id="it was told too late"),
        pytest.param(Plan(0, 3, 17), 15, 18, id="it began between the first and the last"),
        pytest.param(Plan(0, 3, 0), 20, 23, id="the first one is not known"),
        pytest.param(Plan(9, 0, 0), 20, 0, id="a window"),
    ],
)
def test_end_of_iterations(plan: Plan, count: int, end_count: int) -> None:
    assert plan.find_end(count) == end_count


# Nothing but small ops, in more processes than there are cores.
STRESS = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(4, 16)
print("stepping", flush=True)
while True:
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_processes_that_share_cores_survive_their_traces() -> None:
    # With torch alone one of some dozen such traces ends its process.
    count = 3 * len(os.sched_getaffinity(0))

    async def main() -> None:
        async with node() as here:
            (here.folder / "kineto.conf").touch()  # as in the folder of an agent of ours
            jobs = [here.start_job(STRESS) for _ in range(count)]
            await here.registered(count)
            for _ in range(20):
                told = await here.trace(TraceRequest(duration_ms=50))
                assert states_of(told) == [TraceState.WRITTEN] * count, told
            assert [job.poll() for job in jobs] == [None] * count

    asyncio.run(main())


@pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user, which root can")
@pytest.mark.parametrize("trap", ["file", "pipe", "link", "folder"])
def test_word_of_another_user_is_not_heard(tmp_path: Path, trap: str) -> None:
    path, plan = tmp_path / "trace-7", tmp_path / "plan"
    plan.write_text("17 2 40")
    if trap == "file":
        path.write_text("17 2 40")
        assert read_plan({str(path)})
        os.chown(path, 12345, 12345)
    elif trap == "pipe":
        os.mkfifo(path)
    elif trap == "link":
        path.symlink_to(plan)
    else:
        path.mkdir()
    assert read_plan({str(path)}) is None
    assert not kineto_folder.is_mark(str(path))
    assert kineto_folder.is_mark(str(plan))
