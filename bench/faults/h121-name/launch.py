"""Starts one process for each rank, as a job script without torchrun does."""

import sys
from pathlib import Path

from _train.spawn import WORLD, spawn_ranks


def main() -> int:
    seed = sys.argv[1]
    changes = {rank: {"MASTER_ADDR": f"trainer-{seed}.jobs.invalid"} for rank in range(WORLD)}
    return spawn_ranks(Path(__file__).resolve().with_name("job.py"), seed, changes=changes)


if __name__ == "__main__":
    sys.exit(main())
