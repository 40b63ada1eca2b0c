from __future__ import annotations

from typing import Any

from whystuck.agent.processes.identify import Identity
from whystuck.agent.processes.kinds import DATA_WORKER, Standing, tell_kinds
from whystuck.evidence.agent import ProcessKind

RANK, PROCESS = ProcessKind.RANK, ProcessKind.PROCESS
LAUNCHER, HELPER = ProcessKind.LAUNCHER, ProcessKind.HELPER


def _made(
    pid: int, *parents: int, name: str = "", told: tuple[int, int] = (-1, -1), **values: Any
) -> Standing:
    """A process; ``elastic`` is the rank that torchrun gave it."""
    rank = values.pop("elastic", None)
    if rank is not None:
        values |= {"rank": rank, "local_rank": rank, "world_size": 2, "is_elastic": True}
    identity = Identity(pid=pid, parents=parents, **values)
    return Standing(identity=identity, name=name, told_rank=told[0], told_world_size=told[1])


def _kinds(*standings: Standing) -> list[ProcessKind]:
    kinds = tell_kinds(standings)
    assert kinds == tell_kinds(reversed(standings)), "the order must not matter"
    return [kinds[one.identity.pid] for one in standings]


def test_process_alone_is_a_process_or_a_rank() -> None:
    assert _kinds(_made(10)) == [PROCESS]
    assert _kinds(_made(10, elastic=0)) == [RANK]
    assert _kinds(_made(10, rank=3, local_rank=3)) == [RANK]
    assert _kinds(_made(10, told=(0, 1))) == [RANK]


def test_launcher_is_known_by_its_command_or_by_its_ranks() -> None:
    ranks = (_made(11, 10, elastic=0), _made(12, 10, elastic=1))
    assert _kinds(_made(10, is_launcher=True), *ranks) == [LAUNCHER, RANK, RANK]
    assert _kinds(_made(10), *ranks) == [LAUNCHER, RANK, RANK]
    # A platform gives RANK to what it starts, which is torchrun.
    assert _kinds(_made(10, rank=0), *ranks) == [LAUNCHER, RANK, RANK]
    assert _kinds(_made(10, rank=0, is_launcher=True), *ranks) == [LAUNCHER, RANK, RANK]


def test_rank_that_starts_a_job_of_its_own_stays_a_rank() -> None:
    inner = (_made(30, 20, 10, is_launcher=True, elastic=1), _made(31, 30, 20, 10, elastic=0))
    assert _kinds(_made(20, 10, elastic=1), *inner) == [RANK, LAUNCHER, RANK]


def test_what_is_below_a_rank_with_its_rank_helps_it() -> None:
    rank = _made(11, 10, elastic=1)
    assert _kinds(rank, _made(12, 11, 10, elastic=1, is_spawned=True)) == [RANK, HELPER]
    assert _kinds(rank, _made(12, 99, 11, 10, elastic=1)) == [RANK, HELPER]
    assert _kinds(rank, _made(12, 10, elastic=1)) == [RANK, RANK]


def test_wrapper_that_is_not_known_makes_no_helper() -> None:
    """``bash train.sh`` has the rank, too, but never asks for work."""
    assert _kinds(_made(12, 11, 10, elastic=1)) == [RANK]


def test_worker_of_a_data_loader_is_known_by_its_name() -> None:
    assert _kinds(_made(10), _made(11, 10, name=DATA_WORKER)) == [PROCESS, HELPER]
    assert _kinds(_made(10), _made(11, 10, is_tool=True)) == [PROCESS, HELPER]


def test_ranks_of_spawn_are_plain_processes_until_they_tell() -> None:
    parent = _made(10)
    spawned = [_made(pid, 10, is_spawned=True) for pid in (11, 12)]
    assert _kinds(parent, *spawned) == [PROCESS] * 3
    joined = [_made(10 + i, 10, is_spawned=True, told=(i - 1, 2)) for i in (1, 2)]
    assert _kinds(parent, *joined) == [LAUNCHER, RANK, RANK]


def test_ranks_of_spawn_below_one_task_of_a_node_are_not_taken_for_helpers() -> None:
    parent = _made(10, rank=1, local_rank=0)
    spawned = [_made(pid, 10, rank=1, local_rank=0, is_spawned=True) for pid in (11, 12)]
    assert _kinds(parent, *spawned) == [RANK, PROCESS, PROCESS]
    joined = [
        _made(11 + i, 10, rank=1, local_rank=0, is_spawned=True, told=(2 + i, 4)) for i in (0, 1)
    ]
    assert _kinds(parent, *joined) == [LAUNCHER, RANK, RANK]


def test_rank_that_the_probe_tells_overrules_the_environment() -> None:
    one = _made(10, rank=0, local_rank=0, world_size=1, told=(5, 8))
    assert (one.rank, one.world_size, one.local_rank) == (5, 8, -1)
    same = _made(10, elastic=1, told=(1, 2))
    assert (same.rank, same.world_size, same.local_rank) == (1, 2, 1)
