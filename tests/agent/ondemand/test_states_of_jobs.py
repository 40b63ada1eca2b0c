"""How traces of real jobs end: each state, and the job unharmed by it."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.agent.ondemand.nodes import WAIT_S, Node, iterations_of, node, read_trace, states_of
from tests.disks import small_disk

from whystuck.agent.processes.step_counter import open_counter
from whystuck.evidence.agent import TraceProgress, TraceRequest, TraceState

pytestmark = [pytest.mark.slow]

STEPPING = 'print("stepping", flush=True)\n'
# Waits for a file that the test makes.
WAITING = """
import os
def wait_for(name):
    while not os.path.exists(os.path.join(os.path.dirname(__file__), name)):
        train(0.05)
"""
HUNG = """
import torch.distributed as dist
dist.init_process_group("gloo")
print("stepping", flush=True)
def stuck_in_collective():
    if dist.get_rank() != 0:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(600)
stuck_in_collective()
"""


async def _collecting(here: Node, request: TraceRequest) -> str:
    """Ask for a trace, and return when Kineto collects."""
    request = msgspec.structs.replace(request, output=str(here.output))
    (told,) = here.tracer.start(request)
    await here.until(
        lambda: here.tracer.progress(told.request_id)[0].state is TraceState.COLLECTING,
        "the trace does not begin",
    )
    return told.request_id


def _say(here: Node, name: str) -> None:
    (here.folder.parent / name).touch()


async def _end_of(job: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(job.wait, 60)


async def _one(here: Node, request: TraceRequest) -> TraceProgress:
    (told,) = await here.trace(request)
    return told


def test_own_profiler_of_the_job_goes_first() -> None:
    body = f"""
    {WAITING.strip().replace(chr(10), chr(10) + "    ")}
    {STEPPING.strip()}
    with torch.profiler.profile() as own:
        wait_for("go on")
    print("own", len(own.events()), flush=True)
    train(600)
    """

    async def main() -> None:
        async with node() as here:
            here.start_job(body)
            await here.registered()
            await here.until(lambda: here.processes.polls[-1].wants & 2 == 0)
            (told,) = here.tracer.start(TraceRequest(id="a", iterations=2, output=str(here.output)))
            await here.until(lambda: "own profiler" in here.tracer.progress("a")[0].reason)
            _say(here, "go on")
            (told,) = await here.ended("a")
            assert told.state is TraceState.WRITTEN, told
            assert here.seen["a"][0] is TraceState.PENDING
            assert int(here.log().split("own ")[1].split()[0]) > 100

    asyncio.run(main())


def test_own_profiler_of_the_job_takes_over() -> None:
    body = f"""
    {WAITING.strip().replace(chr(10), chr(10) + "    ")}
    {STEPPING.strip()}
    wait_for("go on")
    with torch.profiler.profile() as own:
        train(0.5)
    print("own", len(own.events()), flush=True)
    train(600)
    """

    async def main() -> None:
        async with node() as here:
            here.start_job(body)
            await here.registered()
            request_id = await _collecting(here, TraceRequest(duration_ms=20_000))
            _say(here, "go on")
            (told,) = await here.ended(request_id)
            assert told.state is TraceState.CANCELLED, told
            assert "own profiler" in told.reason
            assert int(here.log().split("own ")[1].split()[0]) > 100
            told = await _one(here, TraceRequest(iterations=1))
            assert told.state is TraceState.WRITTEN, told

    asyncio.run(main())


def test_process_that_is_killed_while_it_is_traced() -> None:
    async def main() -> None:
        async with node() as here:
            job = here.start_job(STEPPING + "train(600)")
            await here.registered()
            request_id = await _collecting(here, TraceRequest(duration_ms=20_000))
            job.send_signal(signal.SIGKILL)
            (told,) = await here.ended(request_id)
            assert (told.state, told.reason) == (
                TraceState.DIED,
                "the process ended while it was traced",
            )
            assert await _end_of(job) == -signal.SIGKILL

    asyncio.run(main())


def test_process_that_exits_before_its_trace_has_begun() -> None:
    async def main() -> None:
        async with node() as here:
            job = here.start_job(WAITING + STEPPING + 'wait_for("end"); sys.exit(7)')
            await here.registered()
            request = TraceRequest(id="a", iterations=2, start_iteration=10_000_000)
            here.tracer.start(request)
            await here.until(lambda: here.tracer.progress("a")[0].state is TraceState.WARM_UP)
            _say(here, "end")
            (told,) = await here.ended("a")
            assert told.state is TraceState.DIED
            assert "before the trace began" in told.reason
            assert await _end_of(job) == 7

    asyncio.run(main())


def test_rank_that_does_not_step_is_not_asked_for_iterations() -> None:
    async def main() -> None:
        async with node() as here:
            here.start_job(HUNG, ranks=2)
            await here.registered(2)
            told = await here.trace(TraceRequest(iterations=2))
            assert states_of(told) == [TraceState.REFUSED, TraceState.REFUSED]
            assert all("--duration" in one.reason for one in told)
            # Nothing was sent, so the place is free; and stacks show where they are.
            told = await here.trace(TraceRequest(duration_ms=200, stacks=True))
            assert states_of(told) == [TraceState.WRITTEN, TraceState.WRITTEN], told
            for one in told:
                names = {event.get("name", "") for event in read_trace(one.file)["traceEvents"]}
                assert any("stuck_in_collective" in name for name in names)

    asyncio.run(main())


def test_gil_held_in_c_costs_no_more_than_the_stacks() -> None:
    body = STEPPING + (
        "import ctypes\ntrain(3)\nctypes.PyDLL(None).sleep(45)\n"
        "print('free', flush=True)\ntrain(600)"
    )

    async def main() -> None:
        async with node() as here:
            here.start_job(body)
            await here.registered()
            pid = here.jobs[0].pid
            await here.until(
                lambda: (
                    Path(f"/proc/{pid}/wchan").read_text() == "hrtimer_nanosleep" and _is_still(pid)
                )
            )
            assert (await _one(here, TraceRequest(duration_ms=200))).state is TraceState.WRITTEN
            here.tracer.start(
                TraceRequest(id="s", duration_ms=200, stacks=True, output=str(here.output))
            )
            await here.until(lambda: here.tracer.progress("s")[0].state is not TraceState.PENDING)
            assert here.tracer.start(TraceRequest(duration_ms=200))[0].state is TraceState.BUSY
            await here.until(lambda: "free" in here.log())
            (told,) = await here.ended("s")
            assert told.state in (TraceState.WRITTEN, TraceState.EXPIRED), told

            def is_free() -> bool:
                (again,) = here.tracer.start(TraceRequest(iterations=1, output=str(here.output)))
                return again.state is TraceState.PENDING

            await here.until(is_free, "the profiler is still held")

    asyncio.run(main())


def _is_still(pid: int) -> bool:
    import time

    from whystuck.agent.ondemand.guards import read_cpu_ns

    before = read_cpu_ns(pid)
    time.sleep(0.3)
    return read_cpu_ns(pid) - before < 1_000_000


def test_folder_that_is_deleted_while_it_is_written_to() -> None:
    async def main() -> None:
        async with node() as here:
            job = here.start_job(STEPPING + "train(600)")
            await here.registered()
            request_id = await _collecting(here, TraceRequest(duration_ms=2_000))
            shutil.rmtree(here.folder.parent / "raw")
            (told,) = await here.ended(request_id)
            assert told.state is TraceState.FAILED, told
            assert "its folder is gone" in told.reason
            told = await _one(here, TraceRequest(iterations=1))
            assert told.state is TraceState.WRITTEN, told
            assert job.poll() is None

    asyncio.run(main())


def test_disk_that_is_full_where_kineto_writes() -> None:
    async def main(disk: Path) -> None:
        async with node() as here:
            job = here.start_job(STEPPING + "train(600)")
            await here.registered()
            request = TraceRequest(log_file=str(disk / "t.json"), duration_ms=500)
            told = await _one(here, request)
            assert told.state is TraceState.FAILED, told
            assert any(word in told.reason for word in ("cut short", "full", "empty"))
            told = await _one(here, TraceRequest(iterations=1))
            assert told.state is TraceState.WRITTEN, told
            assert job.poll() is None

    with small_disk("size=16k") as disk:
        asyncio.run(main(disk))


def test_disk_that_is_full_where_traces_go() -> None:
    async def main(disk: Path) -> None:
        async with node() as here:
            here.start_job(STEPPING + "train(600)")
            await here.registered()
            request = TraceRequest(iterations=20, output=str(disk), packed=False)
            told = await _one(here, request)
            assert told.state is TraceState.FAILED, told
            assert "No space left on device" in told.reason
            assert iterations_of(read_trace(told.file)), "the trace stays where it was"
            assert told.file in told.reason

    with small_disk("size=16k") as disk:
        asyncio.run(main(disk))


def test_process_that_is_stopped_does_not_ask() -> None:
    async def main() -> None:
        async with node() as here:
            job = here.start_job(STEPPING + "train(600)")
            await here.registered()
            job.send_signal(signal.SIGSTOP)
            told = await _one(here, TraceRequest(duration_ms=200, stop_s=3))
            assert (told.state, told.reason) == (
                TraceState.EXPIRED,
                "gave up waiting: the process does not ask for work",
            )
            job.send_signal(signal.SIGCONT)
            told = await _one(here, TraceRequest(duration_ms=200))
            assert told.state is TraceState.WRITTEN, told

    asyncio.run(main())


def test_rank_that_was_asked_for_iterations_when_it_was_stuck_can_be_traced() -> None:
    async def main() -> None:
        async with node() as here:
            (here.folder / "kineto.conf").touch()  # as in the folder of an agent of ours
            stop = here.folder.parent / "stop"
            stuck = f"""
            train(2)
            import os
            print("stepping", flush=True)
            while not os.path.exists({str(stop)!r}): time.sleep(0.1)
            """
            job = here.start_job(stuck)
            await here.registered()
            (told,) = await here.trace(TraceRequest(iterations=3, stop_s=2))
            assert told.state is TraceState.EXPIRED, told
            (told,) = await here.trace(TraceRequest(duration_ms=200))
            assert told.state is TraceState.WRITTEN, told
            stop.touch()
            assert job.wait(WAIT_S) == 0

    asyncio.run(main())


def test_second_request_is_told_that_the_first_is_under_way() -> None:
    async def main() -> None:
        async with node() as here:
            here.start_job(STEPPING + "train(600)")
            await here.registered()
            request_id = await _collecting(here, TraceRequest(duration_ms=1_000))
            (second,) = here.tracer.start(TraceRequest(duration_ms=100))
            assert second.state is TraceState.BUSY
            assert request_id in second.reason
            (told,) = await here.ended(request_id)
            assert told.state is TraceState.WRITTEN
            (third,) = here.tracer.start(TraceRequest(id="c", duration_ms=100))
            assert [one.state for one in here.tracer.cancel("c")] == [TraceState.CANCELLED]
            assert third.state is TraceState.PENDING

    asyncio.run(main())


@pytest.mark.parametrize("is_counted", [False, True], ids=["uncounted", "counted"])
def test_ranks_of_a_job_trace_the_same_iterations(*, is_counted: bool) -> None:
    body = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    train(1)
    print("stepping", flush=True)
    train(600)
    """

    async def main() -> None:
        async with node() as here:
            if is_counted:  # the folder of an agent of ours, where the probe counts steps for it
                (here.folder / "kineto.conf").touch()
            job = here.start_job(body, ranks=4)
            await here.registered(4)
            for pids, roundup in (((), 1), ((), 7), ((job.pid,), 1)):
                told = await here.trace(TraceRequest(iterations=3, pids=pids, roundup=roundup))
                # A launcher is traced when it is named, and makes no steps.
                told = [one for one in told if one.pid != job.pid]
                assert states_of(told) == [TraceState.WRITTEN] * 4, told
                traces = [read_trace(one.file) for one in told]
                assert [one["distributedInfo"]["rank"] for one in traces] == [0, 1, 2, 3]
                # On a busy machine Kineto stops some iterations too late.
                found = [sorted(iterations_of(one))[:3] for one in traces]
                assert len(found[0]) == 3
                assert all(one == found[0] for one in found), (found, told)
                # Kineto notes the first one from the end of the step before it on.
                assert found[0][0] % roundup in (0, 1 % roundup)
            # Where steps are counted, all are told one that is ahead; else they are compared.
            counts = [open_counter(one.pid) for one in told]
            assert [one is not None for one in counts] == [is_counted] * 4

    asyncio.run(main())
