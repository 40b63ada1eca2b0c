"""Groups that the connections of ranks show."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from whystuck.diagnose.algorithms.ops.mesh import Mesh, find_mesh
from whystuck.evidence.live import ProcessSample
from whystuck.evidence.records import Connection

FOUR = list(combinations(range(4), 2))


def connect(pairs: Iterable[tuple[int, int]], ranks: int = 4, store: bool = False) -> Mesh:
    """Connect pairs of ranks; with ``store``, rank 0 serves all ranks, itself too."""
    ends: dict[int, list[Connection]] = {rank: [] for rank in range(ranks)}
    for number, (one, other) in enumerate(pairs):
        near, far = f"127.0.0.1:{2000 + number}", f"127.0.0.1:{3000 + number}"
        ends[one].append(Connection(near, far))
        ends[other].append(Connection(far, near))
    for rank in range(ranks) if store else ():
        ends[0].append(Connection("127.0.0.1:29500", f"127.0.0.1:{4000 + rank}"))
        ends[rank].append(Connection(f"127.0.0.1:{4000 + rank}", "127.0.0.1:29500"))
    looks = [
        ProcessSample(
            rank=rank, pid=100 + rank, worker=False, taken_ns=0, state="S", connections=tuple(links)
        )
        for rank, links in ends.items()
    ]
    return find_mesh(looks, range(ranks))


def test_one_connection_for_each_pair_is_one_group() -> None:
    mesh = connect(FOUR)
    assert mesh.is_single
    assert mesh.find_other_members(1) == frozenset()


def test_store_of_rank_0_is_no_group() -> None:
    assert connect(FOUR, store=True).is_single


def test_second_connection_of_a_pair_is_a_group_of_its_own() -> None:
    mesh = connect([*FOUR, (0, 1), (2, 3)])
    assert not mesh.is_single
    assert mesh.find_other_members(2) == {2, 3}


def test_rank_of_two_small_groups_is_in_none_that_is_known() -> None:
    mesh = connect([*FOUR, (0, 1), (2, 3), (0, 2), (1, 3)])
    assert mesh.find_other_members(0) == frozenset()


def test_groups_of_all_ranks_have_no_other_members() -> None:
    mesh = connect([*FOUR, *FOUR])
    assert not mesh.is_single
    assert mesh.find_other_members(0) == frozenset()


def test_mesh_with_a_hole_tells_nothing() -> None:
    mesh = connect(FOUR[:-1])
    assert not mesh.shared
    assert not mesh.is_single
    assert mesh.find_other_members(0) == frozenset()
