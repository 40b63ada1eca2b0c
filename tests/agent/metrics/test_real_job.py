"""Metrics of a real job: what its ranks have made, who stands still, and that they end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agent.metrics.checking import collect
from tests.launch.running import END, WHYSTUCK, clean_environment, torchrun

from whystuck.agent.metrics.node.perf import PerfSource
from whystuck.agent.metrics.node.perf_families import SOFTWARE_GROUPS, Scope
from whystuck.agent.metrics.rank.attribution import Attribution
from whystuck.agent.metrics.rank.labels import RankBook, RankProcess
from whystuck.agent.metrics.rank.processes import ProcessSource
from whystuck.agent.metrics.rank.progress import RankSource

JOB = """
import pathlib, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
flag = torch.zeros(1)
while flag.item() == 0:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
    flag[0] = pathlib.Path("end").exists()
    dist.all_reduce(flag)
"""
JOB += END
Found = dict[tuple[str, ...], float]


def wait_for(read: Callable[[], Found], is_so: Callable[[Found], bool]) -> Found:
    until_s = time.monotonic() + 120
    while not is_so(found := read()):
        assert time.monotonic() < until_s, found
        time.sleep(0.3)
    return found


def values(found: Found, name: str) -> dict[str, float]:
    """Return the values of a metric by rank."""
    return {key[2]: value for key, value in found.items() if key[0] == name}


@pytest.mark.slow
def test_a_job_is_told_by_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOB)
    job = subprocess.Popen(
        [*WHYSTUCK, "run", "--stall-after", "600", "--", *torchrun(2, tmp_path / "train.py")],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    book = RankBook(attribution=Attribution())

    def list_ours() -> list[RankProcess]:
        return [one for one in book.list_fresh() if is_below(one.pid, job.pid)]

    ranks = RankSource(list_ours)
    processes = ProcessSource(list_ours)
    perf = PerfSource(list_ours, scope=Scope.RANKS, groups=SOFTWARE_GROUPS)
    stopped = 0
    try:
        found = wait_for(
            lambda: collect(ranks), lambda found: len(values(found, "rank_step_seconds")) == 2
        )
        # 50 ms of sleep is in each step, and more on a busy machine
        assert set(values(found, "rank_step_seconds")) == {"0", "1"}
        assert all(0.05 < value < 10 for value in values(found, "rank_step_seconds").values())
        assert min(values(found, "rank_collectives_completed_total").values()) > 0
        assert min(values(found, "rank_optimizer_steps_total").values()) > 0
        info = {key for key in found if key[0] == "rank_info"}
        assert {key[2] for key in info} == {"0", "1"}
        pids = {key[2]: int(key[3]) for key in info}
        assert min(values(collect(processes), "rank_resident_memory_bytes").values()) > 50e6
        assert {key[2] for key in collect(perf)} == {"0", "1"}

        # WHEN one rank is stopped, its heart stops, and neither of them moves any more
        stopped = pids["1"]
        os.kill(stopped, signal.SIGSTOP)
        found = wait_for(
            lambda: collect(ranks),
            lambda found: (
                values(found, "rank_beat_age_seconds")["1"] > 4
                and min(values(found, "rank_last_progress_age_seconds").values()) > 3
            ),
        )
        assert values(found, "rank_beat_age_seconds")["0"] < 3
        states = [key for key in collect(processes) if key[0] == "rank_process_state"]
        assert "stopped" in {key[3] for key in states if key[2] == "1"}

        os.kill(stopped, signal.SIGCONT)
        before = values(found, "rank_optimizer_steps_total")["0"]
        wait_for(
            lambda: collect(ranks),
            lambda found: values(found, "rank_optimizer_steps_total")["0"] > before,
        )
        (tmp_path / "end").touch()

        # ... and the job ends as if nobody had looked
        assert job.wait(timeout=120) == 0
        for source in (ranks, processes, perf):
            wait_for(lambda source=source: collect(source), lambda found: not found)  # type: ignore[misc]
    finally:
        perf.close()
        if job.poll() is None:
            if stopped:
                os.kill(stopped, signal.SIGCONT)
            job.terminate()
            job.wait(timeout=60)


def is_below(pid: int, parent: int) -> bool:
    """Tell whether a process descends from another one."""
    for _ in range(16):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid == parent:
            return True
        if pid <= 1:
            return False
    return False
