"""Ranks that are slow in one phase of a step, under `whystuck run --marks`: real jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import END, run_whystuck, torchrun

JOB = """
import sys, time
import torch, torch.distributed as dist
what, culprit = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
torch.set_num_threads(1)
is_slow = dist.get_rank() == culprit or culprit < 0

def work(phase, base_s=0.02, extra_s=0.02):
    time.sleep(base_s + (extra_s if is_slow and what == phase else 0))

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        work("dataloader", 0.06 if what == "starved" else 0.01)
        return torch.ones(64)

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, gradient):
        work("backward")
        return gradient

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    def forward(self, x):
        work("forward")
        return self.second(Backward.apply(self.first(x)))

class File:
    def __init__(self, takes_s):
        self.takes_s = takes_s
    def write(self, data):
        time.sleep(self.takes_s)
        self.takes_s = 0
        return len(data)
    def flush(self):
        pass

model = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=1))
for step in range(90):
    batch = next(batches)
    work("host", 0)
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9 and (what == "checkpoint" or (what == "serial" and is_slow)):
        torch.save({"step": step}, File(0.3 if is_slow else 0.01))
dist.barrier()
"""


def judge(tmp_path: Path, what: str, culprit: int) -> dict[str, Any]:
    script = tmp_path / "train.py"
    script.write_text(JOB + END)
    done = run_whystuck(
        "run", "--marks", "--no-agent", "--evidence", "ev", "--",
        *torchrun(3, script, what, str(culprit)), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    again = run_whystuck("diagnose", "ev", "--format", "json", cwd=tmp_path)
    report: dict[str, Any] = json.loads(again.stdout)
    return report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "culprit"),
    [("dataloader", 2), ("forward", 0), ("backward", 1), ("host", 2), ("checkpoint", 1)],
)
def test_rank_that_is_slow_in_one_phase_is_named_with_it(
    tmp_path: Path, what: str, culprit: int
) -> None:
    report = judge(tmp_path, what, culprit)
    finding = report["findings"][0]

    assert report["verdict"] == "slow"
    assert (finding["code"], finding["culprits"]["ranks"]) == ("S301", [culprit])
    assert finding["details"]["phase"] == what


@pytest.mark.slow
def test_input_that_starves_all_ranks_names_none(tmp_path: Path) -> None:
    report = judge(tmp_path, "starved", -1)
    finding = report["findings"][0]

    assert (finding["code"], finding["culprits"]["ranks"]) == ("S309", [])
    assert report["verdict"] == "slow"


@pytest.mark.slow
def test_rank_that_alone_saves_is_no_slow_rank(tmp_path: Path) -> None:
    report = judge(tmp_path, "serial", 0)

    assert [(one["code"], one["severity"]) for one in report["findings"]] == [("S305", "note")]
    assert report["findings"][0]["details"]["rank"] == 0


@pytest.mark.slow
def test_equal_ranks_with_marks_are_healthy(tmp_path: Path) -> None:
    report = judge(tmp_path, "nothing", 0)

    assert (report["verdict"], report["findings"]) == ("healthy", [])
