"""Counters of cgroups of several pods or hosts: whose ranks the quota of the processor holds up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

PLACES = [f"train-{number}" for number in range(4)]
SHOWS = {
    "a fence": "== {0}",
    "a command": "$ kubectl exec {0} -- cat /sys/fs/cgroup/cpu.stat",
    "a command of a namespace": "kubectl exec -it {0} -c pytorch -- cat /sys/fs/cgroup/cpu.stat",
    "a prompt": "root@{0}:~# grep nr_ /sys/fs/cgroup/cpu.stat",
    "ssh": "$ ssh {0} cat /sys/fs/cgroup/cpu.stat",
}
FORMULAS = [
    "4 pods x 2 GPU (A10G), rank = 2*pod + local.",
    "(global rank = pod_index * 2 + local_rank)",
    "rank = 2 * pod + gpu",
]
TABLE = [
    "rank   dataload  fwd    bwd    nccl   step",
    *(f"r{rank}     0.012     0.081  0.214  0.612  0.951" for rank in range(4)),
    *(f"r{rank}     0.301     0.332  0.271  0.015  0.951" for rank in (4, 5)),
    *(f"r{rank}     0.012     0.081  0.214  0.612  0.951" for rank in (6, 7)),
]


def write_counters(*held: int, show: str = "== {0}") -> list[str]:
    lines = []
    for number, place in enumerate(PLACES):
        throttled = 85517 if number in held else 12
        lines += [show.format(place), "1600000 100000", f"nr_periods {88100 + number}"]
        lines += [f"nr_throttled {throttled}", "throttled_usec 90122"]
    return lines


@pytest.mark.parametrize("show", SHOWS)
@pytest.mark.parametrize("formula", FORMULAS)
def test_pods_are_counted_as_somebody_says(tmp_path: Path, show: str, formula: str) -> None:
    finding = first_of(say(tmp_path, formula, *write_counters(1, show=SHOWS[show])))

    assert (finding.code, finding.culprits.nodes) == ("S306", ["train-1"])
    assert finding.culprits.ranks == [2, 3]


@pytest.mark.parametrize("said", ["one rank each (rank = pod index)", "rank is the pod's ordinal"])
def test_pods_of_one_rank(tmp_path: Path, said: str) -> None:
    assert first_of(say(tmp_path, said, *write_counters(3))).culprits.ranks == [3]


def test_slow_ranks_are_those_of_the_pod_that_is_held_up(tmp_path: Path) -> None:
    report = say(tmp_path, *TABLE, "", *write_counters(2))

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S306", [4, 5])]


@pytest.mark.parametrize(
    ("lines", "nodes"),
    [
        pytest.param([*TABLE, *write_counters(1)], ["train-1"], id="ranks of another pod are slow"),
        pytest.param(write_counters(1), ["train-1"], id="nobody says who is where"),
        pytest.param([FORMULAS[0], *write_counters(0, 1, 2, 3)], [], id="all pods"),
        pytest.param(
            [FORMULAS[0], "rank = 8*pod + local", *write_counters(1)], ["train-1"], id="two ways"
        ),
        pytest.param(
            [FORMULAS[0], *(line for line in write_counters(1) if "==" not in line)], [], id="whose"
        ),
    ],
)
def test_ranks_that_nobody_knows(tmp_path: Path, lines: list[str], nodes: list[str]) -> None:
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("S306", [])
    assert finding.culprits.nodes == nodes


@pytest.mark.parametrize("bar", ["| ", "  "])
@pytest.mark.parametrize(
    ("head", "names", "ranks"),
    [("rank", [f"r{rank}" for rank in range(4)], [2]), ("pod", PLACES, [])],
)
def test_table_of_counters(
    tmp_path: Path, bar: str, head: str, names: list[str], ranks: list[int]
) -> None:
    rows = [[head, "nr_periods", "nr_throttled", "throttled_usec"]]
    rows += [[name, "88100", "85517" if at == 2 else "12", "1"] for at, name in enumerate(names)]
    finding = first_of(
        say(tmp_path, *(f" {bar}".join(f"{cell:12}" for cell in row) for row in rows))
    )

    assert (finding.code, finding.culprits.ranks) == ("S306", ranks)
    assert finding.culprits.nodes == ([] if ranks else ["train-2"])


def test_both_counters_in_a_line(tmp_path: Path) -> None:
    rows = [
        f"{place}: nr_periods 30120 nr_throttled {29817 if at == 1 else 22}"
        for at, place in enumerate(PLACES)
    ]
    finding = first_of(say(tmp_path, "rank = 2*pod + local_rank", *rows))
    assert (finding.culprits.nodes, finding.culprits.ranks) == (["train-1"], [2, 3])


def test_ranks_of_pods_as_a_sentence_lists_them(tmp_path: Path) -> None:
    said = ", ".join(f"{place} = rank {2 * at}..{2 * at + 1}" for at, place in enumerate(PLACES))
    assert first_of(say(tmp_path, *write_counters(2), f"({said})")).culprits.ranks == [4, 5]
