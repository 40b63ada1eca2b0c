"""The job of `soak.py`: collectives at a steady pace, and process groups that come and go.

    torchrun --nproc-per-node 2 bench/soak_job.py --seconds 2700 --rate 372 --said out.json

A step is an optimizer step and `OPS_PER_STEP` collectives. Every `GROUP_EVERY` steps a group is
made, used by collectives and by a send, and destroyed. Each rank prints some 70 KB a second, so
that its log reaches its cap.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

OPS_PER_STEP = 40
GROUP_EVERY = 5
_LINE = "x" * 700
_LINES_A_SECOND = 100


def use_group(rank: int, size: int, value: torch.Tensor) -> int:
    """Make a group, use it, and destroy it; return the number of collectives."""
    group = dist.new_group(list(range(size)))
    for _ in range(3):
        dist.all_reduce(value, group=group)
    if rank == 0:
        dist.send(value, 1, group=group)
    elif rank == 1:
        dist.recv(value, 0, group=group)
    dist.destroy_process_group(group)
    return 3


def make_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, value: torch.Tensor) -> int:
    """Make one optimizer step with its collectives; return how many these were."""
    optimizer.zero_grad()
    model(torch.ones(4, 16)).square().mean().backward()
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    for number in range(OPS_PER_STEP):
        if number % 8 == 0:
            dist.all_gather(parts, value)
        elif number % 8 == 1:
            dist.broadcast(value, 0)
        else:
            dist.all_reduce(value)
    value.fill_(1)
    optimizer.step()
    return OPS_PER_STEP


def agree_on_begin() -> float:
    """Return the time at which all began, of the clock of this host.

    Ranks with a begin of their own each would make each other wait in every step.
    """
    begin_s = torch.tensor([time.monotonic()], dtype=torch.float64)
    dist.broadcast(begin_s, 0)
    return float(begin_s)


def main() -> None:
    """Run until the time is over, at a pace; rank 0 tells what was made."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, required=True, help="collectives a second")
    parser.add_argument("--said", type=Path, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    value = torch.ones(64)
    steps = ops = groups = lines = 0
    begin_s = agree_on_begin()
    is_over = torch.zeros(1)
    while True:
        # One answer for all: each rank has a clock of its own.
        is_over.fill_(time.monotonic() - begin_s > options.seconds)
        dist.broadcast(is_over, 0)
        if is_over:
            break
        ops += 1 + make_step(model, optimizer, value)
        steps += 1
        if steps % GROUP_EVERY == 0:
            ops += use_group(rank, size, value)
            groups += 1
        while lines < ops / options.rate * _LINES_A_SECOND:
            print(steps, _LINE)
            lines += 1
        time.sleep(max(0.0, begin_s + ops / options.rate - time.monotonic()))
    if rank == 0:
        said = {"collectives": ops, "groups": groups, "steps": steps}
        options.said.write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
