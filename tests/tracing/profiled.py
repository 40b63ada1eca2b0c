"""Traces that torch's own profiler makes on this machine."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from whystuck.evidence.trace import Trace
from whystuck.trace_files import read_trace_file

TRAINING = """
import sys, time
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule, record_function
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
train(sys.argv[1], False)
train(sys.argv[2], True)
"""


@cache
def trace_training(*, with_stack: bool = False) -> Trace:
    """The trace of steps 1 to 4 of a small training on the CPU, with shapes and memory."""
    return _train()[int(with_stack)]


@cache
def _train() -> tuple[Trace, Trace]:
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("plain.json", "stacks.json")]
        run_job(TRAINING, *map(str, paths))
        plain, stacks = (read_trace_file(path) for path in paths)
    return plain, stacks


def run_job(code: str, *arguments: str) -> str:
    """Run Python code with torch in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
