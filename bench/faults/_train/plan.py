"""What a seed decides. Standard library only: the runner reads it without torch."""

import random
from dataclasses import dataclass

SHAPES = ("plain", "ddp", "fsdp")


@dataclass(frozen=True)
class Plan:
    seed: int
    shape: str
    culprit: int
    step: int
    amount: float
    depth: int

    @property
    def even(self) -> bool:
        """Which of two ways to split the code over functions or modules."""
        return self.seed % 2 == 0


def make_plan(case: str, seed: int, shapes: tuple[str, ...] = SHAPES, world: int = 4) -> Plan:
    """The same answer in every process, so that ranks and runner need not talk about it."""
    first = random.Random(case).randrange(world)
    draw = random.Random(f"{case}/{seed}")
    return Plan(
        seed=seed,
        shape=shapes[seed % len(shapes)],
        culprit=(first + seed) % world,
        step=draw.randint(5, 15),
        amount=draw.random(),
        depth=draw.randrange(3),
    )
