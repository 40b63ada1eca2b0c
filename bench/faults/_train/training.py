"""Start-up, batches and the end of a training job."""

import argparse
import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from _train.data import BATCH, Sample, Samples, batches
from _train.engines import Engine, build_engine
from _train.plan import SHAPES, Plan, make_plan
from _train.wrappers import wrap

P = ParamSpec("P")
R = TypeVar("R")

STEPS = 40


@dataclass
class Job:
    plan: Plan
    rank: int
    world: int
    engine: Engine
    random: random.Random

    def chosen(self) -> bool:
        return self.rank == self.plan.culprit

    def turn(self, step: int) -> bool:
        return self.chosen() and step == self.plan.step

    def wrapped(self, function: Callable[P, R]) -> Callable[P, R]:
        return wrap(function, self.plan.depth)

    def batches(
        self, dataset: Dataset[Sample] | None = None, steps: int = STEPS, workers: int = 0
    ) -> Iterator[tuple[int, Sample]]:
        return enumerate(batches(dataset or Samples(steps * BATCH), workers))

    def mean(self, value: torch.Tensor) -> float:
        """The mean over ranks, as training loops log it."""
        total = value.reshape(1).clone()
        dist.all_reduce(total)
        return total.item() / self.world

    def log(self, step: int, loss: float) -> None:
        if self.rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)

    def finish(self) -> None:
        # A rank that closes its connections early can fail a peer that is still reading.
        dist.barrier()
        self.close()

    def close(self) -> None:
        # FSDP keeps references to the group; one that outlives the interpreter aborts at exit.
        del self.engine
        gc.collect()
        dist.destroy_process_group()


def start(script: str, shapes: tuple[str, ...] = SHAPES, timeout: timedelta | None = None) -> Job:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timeout)
    plan = make_plan(Path(script).resolve().parent.name, seed, shapes, dist.get_world_size())
    rank = dist.get_rank()
    return Job(
        plan=plan,
        rank=rank,
        world=dist.get_world_size(),
        engine=build_engine(plan.shape),
        random=random.Random(1000 * seed + rank),
    )
