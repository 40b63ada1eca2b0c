"""Starts one process for each rank, as a job script without torchrun does."""

import sys
from pathlib import Path

from _train.plan import make_plan
from _train.spawn import WORLD, spawn_ranks


def main() -> int:
    seed = sys.argv[1]
    folder = Path(__file__).resolve().parent
    culprit = make_plan(folder.name, int(seed)).culprit
    ranks = [culprit if rank == (culprit + 1) % WORLD else rank for rank in range(WORLD)]
    return spawn_ranks(folder / "job.py", seed, ranks=ranks)


if __name__ == "__main__":
    sys.exit(main())
