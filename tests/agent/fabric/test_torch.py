"""The Kineto of torch, as it is, asks an agent of ours."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.agent.fabric.clients import until
from tests.agent.fabric.torch_jobs import Job, Keeper

from whystuck.agent.agent_folder import agent_folder
from whystuck.agent.fabric import endpoint
from whystuck.agent.fabric.addresses import AbstractAddress, FabricAddress, PathAddress
from whystuck.agent.fabric.endpoint import FabricEndpoint
from whystuck.evidence.agent import ProcessKind

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ws", dir="/tmp") as name:
        yield Path(name) / "k"


@asynccontextmanager
async def _serving(address: FabricAddress) -> AsyncIterator[tuple[Keeper, FabricEndpoint]]:
    keeper = Keeper()
    served = FabricEndpoint(keeper, address)
    served.start()
    try:
        yield keeper, served
    finally:
        served.close()
        keeper.registry.close()


async def _finish(job: Job) -> int:
    return await asyncio.to_thread(job.finish)


def test_process_registers_and_ends_as_if_nobody_were_there(folder: Path) -> None:
    async def go() -> None:
        async with _serving(PathAddress(folder)) as (keeper, served):
            with Job(folder.parent, folder=str(folder)) as job:
                await until(lambda: keeper.pids() == [job.process.pid])
                await until(lambda: served.counts.answers >= 2)
                entry = keeper.registry.list_all()[0]
                assert (entry.kind, entry.rank) == (ProcessKind.PROCESS, -1)
                assert entry.told_pids[:2] == (entry.pid, os.getpid())
                assert not entry.is_busy
                assert await _finish(job) == 7
                assert b"ERROR" not in job.log.read_bytes()
            await until(lambda: keeper.pids() == [])
            assert served.counts.garbage == served.counts.misplaced == served.counts.unsent == 0

    asyncio.run(go())


@pytest.mark.slow
def test_ranks_of_torchrun_are_known_and_their_launcher_is(folder: Path) -> None:
    async def go() -> None:
        async with _serving(PathAddress(folder)) as (keeper, _):
            command = ("torchrun", "--standalone", "--nproc-per-node", "2")
            with Job(folder.parent, *command, folder=str(folder)) as job:
                await until(lambda: len(keeper.pids()) == 3)
                first, second, launcher = keeper.registry.list_all()
                assert [(one.kind, one.rank) for one in (first, second)] == [
                    (ProcessKind.RANK, 0),
                    (ProcessKind.RANK, 1),
                ]
                assert (first.world_size, first.local_rank, second.local_rank) == (2, 0, 1)
                assert first.job == second.job != ""
                assert (launcher.kind, launcher.pid) == (ProcessKind.LAUNCHER, job.process.pid)
                assert await _finish(job) == 1  # torchrun's own when a rank returns 7
            await until(lambda: keeper.pids() == [])

    asyncio.run(go())


@pytest.mark.slow
def test_abstract_socket_serves_kineto_without_a_folder() -> None:
    """In a network namespace of its own, as the name is one for all of this machine."""
    can_unshare = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    if can_unshare.returncode:
        pytest.skip("may not make a network namespace")
    test = "from tests.agent.fabric.test_torch import serve_abstract; serve_abstract()"
    command = ["unshare", "-n", sys.executable, "-c", test]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, b"")


def serve_abstract() -> None:
    """Register a job over the abstract name; raises when anything is wrong."""

    async def go() -> None:
        with tempfile.TemporaryDirectory() as name:
            async with _serving(AbstractAddress()) as (keeper, served):
                with Job(Path(name), folder=None) as job:
                    await until(lambda: served.counts.answers >= 2)
                    _check(keeper.pids() == [job.process.pid], "registered")
                    _check(await _finish(job) == 7, "exit code")

    asyncio.run(go())


def _check(is_true: bool, what: str) -> None:
    if not is_true:
        raise RuntimeError(what)


@pytest.mark.slow
def test_job_meets_a_late_agent_outlives_it_and_meets_the_next(folder: Path) -> None:
    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.agent.fabric.torch_jobs", str(folder)]
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert agent.stdout
        assert agent.stdout.readline() == b"ready\n"
        return agent

    agent_folder(folder)
    with Job(folder.parent, folder=str(folder)) as job:
        while b"ready" not in job.log.read_bytes():
            assert job.process.poll() is None
            time.sleep(0.05)
        first = start()
        assert first.stdout
        assert first.stdout.readline() == f"{job.process.pid}\n".encode()
        first.send_signal(signal.SIGKILL)
        first.communicate()
        assert (folder / "dynolog").exists()  # a stale socket, as a killed agent leaves it
        with start() as second:
            assert second.stdout
            assert second.stdout.readline() == f"{job.process.pid}\n".encode()
            assert job.finish() == 7
            assert second.stdout.readline() == b"\n"
            second.kill()


@pytest.mark.slow
def test_job_outlives_the_folder_of_its_agent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_CHECK_EVERY_S", 0.05)

    async def go() -> None:
        async with _serving(PathAddress(folder)) as (keeper, served):
            with Job(folder.parent, folder=str(folder)) as job:
                await until(lambda: served.counts.answers >= 1)
                await asyncio.to_thread(shutil.rmtree, folder)
                await until(lambda: served.counts.unsent >= 1)
                assert [one.can_answer for one in keeper.registry.list_all()] == [False]
                assert await _finish(job) == 7

    asyncio.run(go())


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["{}/", "{}/../k", "link"])
def test_job_that_spells_the_folder_otherwise_is_not_harmed(folder: Path, spelling: str) -> None:
    """Kineto ends its process on an answer from an address that does not begin as it expects."""
    (folder.parent / "link").symlink_to(folder)
    named = str(folder.parent / "link") if spelling == "link" else spelling.format(folder)

    async def go() -> None:
        async with _serving(PathAddress(folder)) as (keeper, served):
            with Job(folder.parent, folder=named) as job:
                await until(lambda: served.counts.misplaced >= 2)
                assert keeper.pids() == []
                assert await _finish(job) == 7

    asyncio.run(go())


@pytest.mark.slow
def test_equal_pids_of_two_namespaces_are_two_processes(folder: Path) -> None:
    apart = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("may not make a PID namespace")

    async def go() -> None:
        async with _serving(PathAddress(folder)) as (keeper, _):
            one = Job(folder.parent, folder=str(folder), prefix=apart)
            other = Job(folder.parent, folder=str(folder), prefix=apart)
            with one, other:
                await until(lambda: len(keeper.pids()) == 2)
                entries = keeper.registry.list_all()
                assert [entry.told_pids for entry in entries] == [(1,), (1,)]
                assert 1 not in keeper.pids()
                assert all(str(one.script) in entry.command for entry in entries)
                assert [await _finish(one), await _finish(other)] == [7, 7]
            await until(lambda: keeper.pids() == [])

    asyncio.run(go())
