"""Trains a small model with DDP under torch.profiler, and writes a trace of each rank.

It runs on CPU:

    torchrun --standalone --nproc-per-node 2 examples/trace/train.py ./traces

Something costs it much of its time. Can you see it? `make demo-trace` can.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

STEPS = 8


class Samples(Dataset):
    """Samples that take their time to be decoded."""

    def __len__(self):
        return 32 * STEPS

    def __getitem__(self, index):
        time.sleep(0.002)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(256, generator=generator), torch.tensor(index % 10)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Samples(), batch_size=32)

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=5, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(str(folder / f"rank{rank}.json.gz")),
    ) as profiler:
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
