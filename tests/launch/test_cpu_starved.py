"""A rank whose cgroup has a CPU quota: named, and not called slow for a reason of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launch.running import END, run_whystuck, torchrun

CGROUPS = Path("/sys/fs/cgroup")
JOB = """
import os, sys, time
import torch, torch.distributed as dist
group = sys.argv[1]
if os.environ["RANK"] == "1":
    open(f"{group}/cgroup.procs", "w").write(str(os.getpid()))
dist.init_process_group("gloo")
torch.set_num_threads(1)
for step in range(120):
    end_s = time.thread_time() + 0.03
    while time.thread_time() < end_s:
        pass
    time.sleep(0.05)
    dist.all_reduce(torch.ones(4))
"""

# Four ranks with eight threads each on two cores.
CROWDED = """
import os, time
import torch, torch.distributed as dist
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
dist.init_process_group("gloo")
torch.set_num_threads(8)
one, other = torch.randn(512, 512), torch.randn(512, 512)
end = torch.tensor(time.time() + 40)
dist.broadcast(end, 0)
while True:
    for _ in range(4):
        one @ other
    over = torch.tensor(float(time.time() > end))
    dist.all_reduce(over)
    if over:
        break
"""


@pytest.fixture
def throttled() -> Iterator[Path]:
    """Make a cgroup that may use a tenth of a core."""
    is_old = (CGROUPS / "cpu").is_dir()
    group = (CGROUPS / "cpu" if is_old else CGROUPS) / f"whystuck-test-{os.getpid()}"
    try:
        group.mkdir()
        if is_old:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("10000")
        else:
            (group / "cpu.max").write_text("10000 100000")
    except OSError as error:
        pytest.skip(f"no cgroup with a CPU quota can be made: {error}")
    yield group
    group.rmdir()


@pytest.mark.slow
def test_rank_with_a_cpu_quota_is_named_with_its_cgroup(tmp_path: Path, throttled: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(JOB + END)
    done = run_whystuck(
        "run", "--no-agent", "--evidence", "ev", "--", *torchrun(2, script, str(throttled)),
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())

    (finding,) = report["findings"]
    assert (finding["code"], finding["culprits"]["ranks"]) == ("S306", [1])
    assert finding["details"]["cgroup"] == f"/{throttled.name}"
    assert finding["measures"]["throttled_share"] > 0.25
    assert finding["victims"]["ranks"] == "0"


@pytest.mark.slow
def test_ranks_with_more_threads_than_cores_are_told_of_together(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CROWDED + END)
    done = run_whystuck(
        "run", "--no-agent", "--evidence", "ev", "--", *torchrun(4, script),
        cwd=tmp_path, environment={"OMP_NUM_THREADS": "8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())

    (finding,) = report["findings"]
    assert (finding["code"], finding["culprits"]["ranks"]) == ("S306", [0, 1, 2, 3])
    assert "OMP_NUM_THREADS" in finding["remedies"][0]
