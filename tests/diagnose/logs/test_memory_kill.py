"""A rank that the kernel ended for want of memory, told from what was watched of its node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.diagnose.logs.test_crashed import ended, with_victims

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Finding
from whystuck.evidence.nodes.records import GroupMemory
from whystuck.evidence.nodes.resources import HostState, MemoryPoint, MemorySeries

GIB = 1 << 30
OWN, PARENT = "/job/step", "/job"


def _state(moment: str, kills: dict[str, int], host_kills: int = 0) -> HostState:
    groups = tuple(
        GroupMemory(path, 2, limit=GIB if path == OWN else 0, oom_kills=count)
        for path, count in kills.items()
    )
    return HostState(
        node="n0",
        moment=moment,
        time_ns=1,
        oom_kills=host_kills,
        groups=groups,
        artifact="n0/host.json",
    )


def _series(rank: int, gib: float, cgroup: str = OWN) -> MemorySeries:
    points = (MemoryPoint(0, GIB // 8), MemoryPoint(10**9, int(gib * GIB)))
    return MemorySeries(rank, 100 + rank, points, node="n0", cgroup=cgroup)


def _find(
    before: dict[str, int],
    after: dict[str, int],
    hosts: tuple[int, int] = (0, 0),
    cgroup: str = OWN,
) -> Finding:
    evidence = with_victims(ended(), (0, 1, 3)).ends(2, signal=9).evidence()
    states = _state("start", before, hosts[0]), _state("end", after, hosts[1])
    memory = (_series(2, 0.9, cgroup), _series(1, 0.1, cgroup))
    return diagnose(replace(evidence, hosts=states, memory=memory)).findings[0]


def test_kill_in_the_cgroup_of_a_rank_is_c202() -> None:
    finding = _find({OWN: 0, PARENT: 0}, {OWN: 1, PARENT: 1})
    assert (finding.code, finding.culprits.ranks) == ("C202", [2])
    assert finding.details["limit_bytes"] == GIB
    assert any(citation.artifact == "n0/host.json" for citation in finding.because)


def test_kill_in_another_cgroup_is_not_that_of_the_rank() -> None:
    finding = _find({OWN: 0, PARENT: 4}, {OWN: 0, PARENT: 5}, hosts=(4, 5))
    assert (finding.code, finding.culprits.ranks) == ("C201", [2])


def test_kill_is_seen_where_a_container_does_not_know_its_own_cgroup() -> None:
    finding = _find({"/": 0}, {"/": 1}, cgroup="/kubepods/pod1")
    assert (finding.code, finding.culprits.ranks) == ("C202", [2])


@pytest.mark.parametrize("hosts", [(7, 8), (7, 7)])
def test_kill_without_cgroups_is_that_of_the_host(hosts: tuple[int, int]) -> None:
    finding = _find({}, {}, hosts=hosts)
    assert finding.code == ("C202" if hosts[0] < hosts[1] else "C201")
