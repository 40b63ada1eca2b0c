"""Traces that torch's own profiler makes on this machine."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from whystuck.evidence.traces.events import Trace
from whystuck.read.traces.files import read_trace_file

JOBS = """
import json, sys, time
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule, record_function
from torch.utils import flop_counter
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.randn(3, 16, 16), index % 4

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.body, self.head = nn.Linear(8 * 14 * 14, 32), nn.Linear(32, 4)
        self.look, self.layer = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32)
    def forward(self, x):
        x = self.body(torch.relu(self.norm(self.conv(x))).flatten(1))[:, None].repeat(1, 5, 1)
        x = self.layer(x + self.look(x, x, x, need_weights=False)[0])
        return self.head(x.mean(1))

def train(path, with_stack):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    batches = iter(DataLoader(Pictures(), batch_size=8))
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=4, repeat=1),
        record_shapes=True, with_stack=with_stack, profile_memory=True, with_modules=with_stack,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
    ) as profiler:
        for _ in range(6):
            images, labels = next(batches)
            with record_function("my_forward"):
                loss = nn.functional.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            profiler.step()

torch.manual_seed(0)
torch.set_num_threads(1)
folder = sys.argv[1]
train(f"{folder}/plain.json", False)
train(f"{folder}/stacks.json", True)

net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(12, 3))
with profile() as profiler:
    for _ in range(3):
        out = net(torch.randn(1, 1, 8, requires_grad=True))
        nn.functional.cross_entropy(out, torch.tensor([1])).backward()
profiler.export_chrome_trace(f"{folder}/linked.json")

def compute():
    x = torch.randn(2, 6, 9, 9, requires_grad=True)
    nn.Conv2d(6, 8, 3, stride=2, padding=1, dilation=2)(x).sum().backward()
    nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1)(x).sum().backward()
    nn.Conv1d(6, 4, 3)(torch.randn(2, 6, 9)).sum().backward()
    nn.Conv3d(2, 4, 3, padding="same")(torch.randn(2, 2, 5, 6, 7)).sum().backward()
    a, b = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 5, 6, requires_grad=True)
    torch.bmm(a, b).sum().backward()
    torch.baddbmm(torch.randn(3, 4, 6), a, b)
    nn.Linear(5, 7)(a).sum().backward()
    torch.mm(a[0], b[0]), torch.addmm(torch.randn(6), a[0], b[0]), torch.matmul(a, b[0])
    q, k, v = (torch.randn(2, 4, n, 8, requires_grad=True) for n in (5, 7, 7))
    F.scaled_dot_product_attention(q, k, v).sum().backward()

with flop_counter.FlopCounterMode(display=False) as counter:
    compute()
with profile(record_shapes=True) as profiler:
    compute()
profiler.export_chrome_trace(f"{folder}/counted.json")
counts = {str(op): int(n) for op, n in counter.get_flop_counts()["Global"].items()}
shapes = [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)]
counts["attention"] = flop_counter.sdpa_flop_count(*shapes)
counts["attention backward"] = flop_counter.sdpa_backward_flop_count(shapes[0], *shapes)
json.dump(counts, open(f"{folder}/counts.json", "w"))
"""


@cache
def trace_training(*, with_stack: bool = False) -> Trace:
    """The trace of steps 1 to 4 of a small training on the CPU, with shapes and memory."""
    return read_trace_file(run_jobs() / ("stacks.json" if with_stack else "plain.json"))


def count_operations() -> dict[str, int]:
    """The operations of ``counted.json`` as torch counts them, by op."""
    counts: dict[str, int] = json.loads((run_jobs() / "counts.json").read_text())
    return counts


@cache
def run_jobs() -> Path:
    """The folder with the traces of all jobs, which run once, in one process."""
    folder = mkdtemp(prefix="whystuck-profiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run_job(JOBS, folder)
    return Path(folder)


def run_job(code: str, *arguments: str) -> str:
    """Run Python code with torch in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
