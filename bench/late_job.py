"""Trains in steps made of sleeps: the jobs of ``late.py``, one after the other in one process.

Each job has a process group of its own, by which its ops are told from those of the others.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64


def work(work_ms: float) -> None:
    time.sleep(max(work_ms, 0.0) / 1000)


@dataclass
class Job:
    """One job: what ``late.py`` asks for, and the group that it runs in."""

    case: dict[str, Any]
    group: Any

    def __post_init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.kind: str = self.case["kind"]
        self.random = random.Random(f"{self.case['seed']}-{self.rank}")
        shared = random.Random(self.case["seed"])
        self.turns = shared.sample(range(self.world), self.world)
        self.value = torch.ones(1024)
        net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 8))
        self.model: torch.nn.Module = net
        if self.case["ddp"]:
            self.model = DistributedDataParallel(net, process_group=self.group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def find_work_ms(self, step: int) -> float:
        """Return how long this rank works in a step."""
        base: float = self.case["base_ms"]
        extra = 0.0
        if self.kind == "late" and self.rank == self.case["late"]:
            extra = self.case["delay_ms"]
        elif self.kind == "jitter":
            extra = 30 * self.random.random()
        elif self.kind == "imbalance":
            extra = base * (2 * self.random.random() - 0.7)
        elif self.kind == "heavy":
            extra = base * (0.5 * self.random.paretovariate(1.5) - 0.5)
        elif self.kind == "turns" and self.turns[step // 7 % self.world] == self.rank:
            extra = 60
        elif self.kind == "slow-start" and step < 4:
            extra = 1500 * self.random.random() / (1 + step)
        return base + extra

    def reduce(self, times: int) -> None:
        """Call some collectives, from one line or from several."""
        if self.case["lines"]:
            calls: list[Callable[[], object]] = [
                lambda: dist.all_reduce(self.value, group=self.group),
                lambda: dist.all_reduce(self.value[:8], group=self.group),
                lambda: dist.barrier(group=self.group),
                lambda: dist.all_reduce(self.value[:2], group=self.group),
            ]
            for call in calls[:times]:
                call()
            return
        for _ in range(times):
            dist.all_reduce(self.value, group=self.group)
            self.value.fill_(1)
            work(self.case["between_ms"])

    def step(self, step: int) -> None:
        """Do one step."""
        spend_ms, ops = self.find_work_ms(step), self.case["ops"]
        if not self.case["ddp"]:
            work(spend_ms)
            if self.kind != "accumulation" or step % 4 == 3:
                self.reduce(ops)
            return
        before = {"input": spend_ms, "forward": 0.0, "backward": 0.0}[self.case["where"]]
        work(before)
        output = self.model(torch.randn(4, WIDTH))
        if self.case["where"] == "forward":
            work(spend_ms)
        if self.case["where"] == "backward":
            output.register_hook(lambda _gradient: work(spend_ms))
        if self.kind == "accumulation" and step % 4 != 3:
            with self.model.no_sync():
                output.sum().backward()
            return
        output.sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.reduce(0 if self.kind == "join" else ops - 1)

    def run_pipeline(self) -> None:
        """Pass a value down a line of stages, of which some work longer, and back."""
        me, last = self.turns.index(self.rank), self.world - 1
        for _ in range(self.case["steps"]):
            if me > 0:
                dist.recv(self.value, self.turns[me - 1], group=self.group)
            work(self.case["base_ms"] * (0.5 + me % 3))
            if me < last:
                dist.send(self.value, self.turns[me + 1], group=self.group)
                dist.recv(self.value, self.turns[me + 1], group=self.group)
            work(self.case["base_ms"] * (0.5 + me % 3))
            if me > 0:
                dist.send(self.value, self.turns[me - 1], group=self.group)
            dist.all_reduce(self.value[:1], group=self.group)
            self.value.fill_(1)

    def run(self) -> None:
        """Run the job."""
        steps = self.case["steps"]
        if self.kind == "pipeline":
            self.run_pipeline()
        elif self.kind == "join":
            with Join([self.model]):
                for step in range(steps // 3 * (1 + self.turns.index(self.rank) % 3)):
                    self.step(step)
        else:
            for step in range(steps):
                self.step(step)
                self.look_after(step)

    def look_after(self, step: int) -> None:
        """Do what rank 0 alone does now and then."""
        if self.kind == "log" and self.rank == 0 and step % 10 == 9:
            work(100)
        if self.kind == "save" and self.rank == 0 and step % 20 == 19:
            work(400)
        if self.kind == "evaluation" and step % 25 == 24:
            work(3000 if self.rank == 0 else 0)
            dist.barrier(group=self.group)


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    dist.init_process_group("gloo")
    names = {}
    for case in cases:
        group = dist.new_group()
        names[case["name"]] = group.group_name
        Job(case, group).run()
        dist.barrier()
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(names), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
