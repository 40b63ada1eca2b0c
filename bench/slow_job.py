"""A DDP job made of sleeps for `bench/slow.py`: ranks that are slow in one phase from one step on.

    torchrun ... bench/slow_job.py SPEC

SPEC is JSON: ``kind`` (of `KINDS`), ``culprit``, ``onset``, ``extra_s``, ``steps``, ``step_s`` and
``seed``; ``group`` is a cgroup that the culprit of ``throttle`` enters. Layers are ``width`` wide.
``note`` is a file that rank 0 makes at the onset, where somebody else makes a link slow then.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SLOW = ("dataloader", "forward", "backward", "checkpoint", "throttle")
QUIET = ("none", "jitter", "imbalance", "pipeline", "join", "evaluation", "saves")
# Between hosts (`namespaces.py`): DDP, stages, and groups of two.
LINKS = ("link", "link-stages", "link-groups")
KINDS = (*SLOW, *QUIET, *LINKS)
_SAVE_EVERY = 10


class State:
    """What the job does now."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.kind = str(spec["kind"])
        self.steps, self.step_s = int(spec["steps"]), float(spec["step_s"])
        self.onset, self.extra_s = int(spec["onset"]), float(spec["extra_s"])
        self.rank = dist.get_rank()
        self.is_culprit = self.rank == spec["culprit"]
        self.own = random.Random(f"{spec['seed']} {self.rank}")
        self.shared = random.Random(spec["seed"])
        self.group = spec.get("group", "")
        self.width = int(spec.get("width", 64))
        self.note = spec.get("note", "")
        self.step = 0

    def begin_step(self) -> None:
        """Tell that the onset has come."""
        if self.note and self.rank == 0 and self.step == self.onset:
            Path(self.note).touch()

    def work(self, phase: str) -> None:
        """Spend a third of a step, and more where this rank is slow."""
        is_slow = self.kind == phase and self.is_culprit and self.step >= self.onset
        time.sleep(self.step_s / 3 + (self.extra_s if is_slow else 0))

    def work_beside(self) -> None:
        """Do what healthy jobs do beside the phases."""
        turn, amount = self.shared.randrange(dist.get_world_size()), self.own.random()
        if self.kind == "jitter" and turn == self.rank:
            time.sleep(0.03 * amount)
        if self.kind == "imbalance":
            time.sleep(self.step_s / 2 * amount)
        if self.kind == "throttle":
            self._compute()

    def _compute(self) -> None:
        if self.is_culprit and self.step == self.onset:
            Path(self.group, "cgroup.procs").write_text(str(os.getpid()))
        end_s = time.thread_time() + self.step_s / 8
        while time.thread_time() < end_s:
            pass

    def finish_step(self) -> None:
        """Save, or evaluate, now and then."""
        if self.kind in {"checkpoint", "saves"} and self.step % _SAVE_EVERY == _SAVE_EVERY - 1:
            is_slow = self.kind == "checkpoint" and self.is_culprit and self.step >= self.onset
            torch.save({"step": self.step}, File(0.02 + (_SAVE_EVERY * self.extra_s) * is_slow))
        if self.kind == "evaluation" and self.step % 60 == 59:
            if self.rank == 0:
                time.sleep(2)
            dist.barrier()
        self.step += 1


class File:
    """A file on slow storage."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s

    def write(self, data: bytes) -> int:
        time.sleep(self.takes_s)
        self.takes_s = 0
        return len(data)

    def flush(self) -> None:
        pass


class Samples(torch.utils.data.Dataset[torch.Tensor]):  # type: ignore[misc]
    def __init__(self, state: State) -> None:
        self.state = state

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.state.work("dataloader")
        return torch.ones(self.state.width)


class Work(torch.autograd.Function):  # type: ignore[misc]
    """Works in the backward pass."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, state: State) -> torch.Tensor:  # noqa: ANN401
        context.state = state
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        context.state.work("backward")
        return gradients[0], None


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self.first, self.second = (torch.nn.Linear(state.width, state.width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.work("forward")
        return self.second(Work.apply(self.first(x), self.state))


def train(state: State) -> None:
    model = DistributedDataParallel(Net(state))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(torch.utils.data.DataLoader(Samples(state), batch_size=1))
    while state.step < state.steps:
        state.begin_step()
        batch = next(batches)
        state.work_beside()
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state.finish_step()


def train_unevenly(state: State) -> None:
    """Give ranks inputs of other lengths, under ``Join``."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(Net(state))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Join([model]):
        for _ in range(state.steps * (3 + state.rank) // (2 + dist.get_world_size())):
            model(torch.ones(1, state.width)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def train_stages(state: State) -> None:
    """Pass activations through stages of uneven depth."""
    last, part_s = dist.get_world_size() - 1, state.step_s / 6 * (1 + state.rank % 3)
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.01)
    for _ in range(state.steps):
        state.begin_step()
        data = torch.ones(state.width * state.width)
        if state.rank:
            dist.recv(data, state.rank - 1)
        time.sleep(part_s)
        if state.rank < last:
            dist.send(data, state.rank + 1)
            dist.recv(data, state.rank + 1)
        time.sleep(part_s)
        if state.rank:
            dist.send(data, state.rank - 1)
        dist.all_reduce(torch.ones(4))
        optimizer.step()
        state.step += 1


def train_groups(state: State) -> None:
    """Reduce within two rows, then within two columns, of a square of four ranks."""
    rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.01)
    for _ in range(state.steps):
        state.begin_step()
        for group in (rows[state.rank // 2], columns[state.rank % 2]):
            time.sleep(state.step_s / 2)
            dist.all_reduce(torch.ones(state.width * state.width), group=group)
        optimizer.step()
        state.step += 1


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    state = State(json.loads(sys.argv[1]))
    others = {
        "join": train_unevenly,
        "pipeline": train_stages,
        "link-stages": train_stages,
        "link-groups": train_groups,
    }
    others.get(state.kind, train)(state)
    dist.barrier()
    # Threads of gloo may abort the end of a process.
    os._exit(0)


if __name__ == "__main__":
    main()
