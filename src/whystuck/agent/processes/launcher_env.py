"""Which rank a process is, as its environment tells: one rule for traces and for figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

_MAX_RANK: Final = 1 << 24
_STEP_IDS: Final = ("SLURM_STEP_ID", "SLURM_STEPID")
# Greater ones are no steps of `srun`, but the batch script and the shell of `salloc`.
_MAX_STEP_ID: Final = 0xFFFFFFEF


class Place(NamedTuple):
    """The place of a process in its job; -1 is unknown."""

    rank: int = -1
    local_rank: int = -1
    world_size: int = -1


# The variables of each launcher; the first that is set tells.
_LAUNCHERS: Final = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
)


def find_place(environment: Mapping[str, str]) -> Place:
    """Return the place that a launcher gave a process, by the variables of its start; pure."""
    for names in _LAUNCHERS:
        place = Place(*(read_number(environment, name) for name in names))
        if place.rank >= 0:
            return place
    return _find_slurm_place(environment)


def read_number(environment: Mapping[str, str], name: str) -> int:
    """Return the number that a variable holds; -1 when it is none."""
    text = environment.get(name, "")
    # Longer ones would be no numbers of ranks; int() refuses very long ones with an error.
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_RANK))):
        return -1
    return min(int(text), _MAX_RANK)


def _find_slurm_place(environment: Mapping[str, str]) -> Place:
    """Return the place of a task of Slurm.

    Batch scripts and shells have variables of rank 0 of all tasks, too. They are told from tasks
    by their step: they have none, and are no ranks.
    """
    rank = read_number(environment, "SLURM_PROCID")
    local_rank = read_number(environment, "SLURM_LOCALID")
    step_tasks = read_number(environment, "SLURM_STEP_NUM_TASKS")
    tasks = read_number(environment, "SLURM_NTASKS")
    step = next((environment[name] for name in _STEP_IDS if environment.get(name)), "")
    if rank < 0 or (step and not _is_step(step)):
        return Place()
    if step_tasks >= 1:
        return Place(rank, local_rank, step_tasks)
    if step or 0 < rank < tasks:
        return Place(rank, local_rank, tasks if rank < tasks else -1)
    return Place()


def _is_step(text: str) -> bool:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_STEP_ID))
    return is_number and int(text) <= _MAX_STEP_ID


__all__ = ["Place", "find_place", "read_number"]
