"""One rule tells the rank of a process, for traces and for figures."""

from __future__ import annotations

import pytest

from whystuck.agent.metrics.rank.attribution import labels_of_environment
from whystuck.agent.processes.launcher_env import Place, find_place

FIRST = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
FOURTH = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({**FOURTH, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0"}, Place(3, 1, 4)),
        ({**FIRST, "SLURM_STEP_NUM_TASKS": "1"}, Place(0, 0, 1)),
        ({**FIRST, "SLURM_STEP_ID": "0"}, Place(0, 0, 8)),
        ({**FIRST, "SLURM_STEPID": "7"}, Place(0, 0, 8)),
        ({"SLURM_PROCID": "2", "SLURM_STEP_ID": "1"}, Place(2, -1, -1)),
        (FOURTH, Place(3, 1, 8)),
        # A batch script and the shell of `salloc` have these as well, and are no ranks.
        (FIRST, Place()),
        ({**FIRST, "SLURM_STEP_ID": "batch"}, Place()),
        ({**FIRST, "SLURM_STEP_ID": "4294967291"}, Place()),
        ({**FIRST, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, Place()),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Place()),
        ({"SLURM_PROCID": "9", "SLURM_NTASKS": "8"}, Place()),
        ({"SLURM_PROCID": "1" * 5000, "SLURM_STEP_ID": "9" * 5000}, Place()),
        ({"RANK": "5", "WORLD_SIZE": "6", **FOURTH}, Place(5, -1, 6)),
        ({"MV2_COMM_WORLD_RANK": "1"}, Place(1, -1, -1)),
        ({}, Place()),
    ],
)
def test_place_is_the_same_for_traces_and_figures(
    environment: dict[str, str], place: Place
) -> None:
    assert find_place(environment) == place
    rank = str(place.rank) if place.rank >= 0 else None
    assert labels_of_environment(environment).get("rank") == rank
