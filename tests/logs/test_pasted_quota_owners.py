"""Whose counters of a control group are, where several containers print theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.parse.logs.reader import read_log

STEPS = [f"job-w-{pod}  rank={pod}  step=220{pod}  step_time=0.91 fwd=0.118" for pod in range(4)]
HELD = 2


def stat(pod: int) -> list[str]:
    is_held = pod == HELD
    return [
        "150000 100000" if is_held else "max 100000",
        "usage_usec 9017733105",
        f"nr_periods {41277 if is_held else 52000}",
        f"nr_throttled {40911 if is_held else 3}",
        "throttled_usec 9017733105",
        "some avg10=78.02 avg60=77.41 avg300=77.90 total=3211907724",
    ]


HEADS = [
    "job-w-{0}",
    "== job-w-{0}",
    "--- pod/job-w-{0} ---",
    "### job-w-{0} (rank {0}):",
    "[job-w-{0}]",
    "rank {0}:",
    ">>> rank{0}",
    "$ kubectl exec -n team-a job-w-{0} -c trainer -- cat /sys/fs/cgroup/cpu.max cpu.stat",
    "$ docker exec job-w-{0} cat /sys/fs/cgroup/cpu.stat",
    "$ ssh job-w-{0} cat /sys/fs/cgroup/train.slice/cpu.stat",
    "root@job-w-{0}:/workspace# cat /sys/fs/cgroup/cpu.stat",
    "job-w-{0}\n==> /sys/fs/cgroup/cpu.max <==",
]


@pytest.mark.parametrize("head", HEADS)
def test_rank_of_the_container_that_is_held_up_is_named(tmp_path: Path, head: str) -> None:
    told = [line for pod in range(4) for line in (*head.format(pod).splitlines(), *stat(pod))]
    finding = first_of(say(tmp_path, *STEPS, "", *told))

    assert (finding.code, finding.culprits.ranks) == ("S306", [HELD])


@pytest.mark.parametrize(
    "form",
    [
        "job-w-{0}: nr_periods {1}\njob-w-{0}: nr_throttled {2}",
        "job-w-{0}  nr_periods={1} nr_throttled={2}",
        "rank {0}: nr_periods {1} nr_throttled {2}",
        "job-w-{0} | nr_periods {1} | nr_throttled {2}",
    ],
)
def test_counters_on_the_line_of_their_owner_are_its(tmp_path: Path, form: str) -> None:
    told = [
        line
        for pod in range(4)
        for line in form.format(pod, 41277, 40911 if pod == HELD else 7).splitlines()
    ]
    finding = first_of(say(tmp_path, *STEPS, "", *told))

    assert (finding.code, finding.culprits.ranks) == ("S306", [HELD])


@pytest.mark.parametrize(
    "steps",
    [
        ["rank {0} runs on job-w-{0}"],
        ["rank {0} -> job-w-{0}"],
        ["pod=job-w-{0} rank={0} step=12 loss=2.1"],
        ['{{"host": "job-w-{0}", "rank": {0}, "step": 12}}'],
        ["job-w-{0}: rank {0} of 4 ready"],
        ["rank {0} (job-w-{0}) step 12"],
    ],
)
def test_rank_of_a_container_is_told_in_many_words(tmp_path: Path, steps: list[str]) -> None:
    lines = [line.format(pod) for pod in range(4) for line in steps]
    told = [line for pod in range(4) for line in (f"== job-w-{pod}", *stat(pod))]
    finding = first_of(say(tmp_path, *lines, "", *told))

    assert (finding.code, finding.culprits.ranks) == ("S306", [HELD])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["see here", *stat(HELD)], id="no heading"),
        pytest.param(["job-w-2", "some words of the user", *stat(HELD)], id="far"),
        pytest.param(["for i in 0 1; do kubectl exec w-$i -- cat cpu.stat", *stat(2)], id="loop"),
        pytest.param(["job-w-2 and job-w-3 and job-w-1", *stat(HELD)], id="three names"),
        pytest.param(["step-2", *stat(HELD)], id="step"),
        pytest.param(["rank 1, rank 2", *stat(HELD)], id="two ranks"),
    ],
)
def test_counters_of_nobody_name_no_rank(tmp_path: Path, lines: list[str]) -> None:
    finding = first_of(say(tmp_path, *STEPS, "", *lines))

    assert (finding.code, finding.culprits.ranks) == ("S306", [])


def test_container_of_unknown_rank_is_named_alone(tmp_path: Path) -> None:
    told = [line for pod in range(4) for line in (f"== job-w-{pod}", *stat(pod))]
    finding = first_of(say(tmp_path, *told))

    assert (finding.culprits.ranks, finding.culprits.nodes) == ([], ["job-w-2"])


def test_rank_that_moved_to_another_pod_is_not_told(tmp_path: Path) -> None:
    told = [line for pod in range(4) for line in (f"== job-w-{pod}", *stat(pod))]
    finding = first_of(say(tmp_path, "rank 2 runs on job-w-2", "rank 2 runs on job-w-7", *told))

    assert (finding.culprits.ranks, finding.culprits.nodes) == ([], ["job-w-2"])


@pytest.mark.parametrize(
    "text",
    [
        "rank 3 of job-4 waits for rank 2",
        "step-12 rank=3 loss 2.1",
        "the rank 3 is slow on train-2 since rank 4",
        "local rank 3",
    ],
)
def test_sentences_seat_nobody(text: str) -> None:
    assert read_log(text.encode()).facts.said.seats == {}


CADVISOR = 'container_cpu_cfs_{0}_total{{container="main",namespace="ml",pod="job-w-{1}"}} {2}'


def test_counters_of_prometheus_are_those_of_their_pod(tmp_path: Path) -> None:
    told = [CADVISOR.format("periods", pod, 50200 + pod) for pod in range(4)]
    told += [
        CADVISOR.format("throttled_periods", pod, 49120 if pod == HELD else pod) for pod in range(4)
    ]
    finding = first_of(say(tmp_path, *STEPS, *told))

    assert (finding.code, finding.culprits.ranks) == ("S306", [HELD])


def test_ranks_of_a_host_are_those_that_a_sentence_tells(tmp_path: Path) -> None:
    show = "root@n{0}:~# docker exec train cat /sys/fs/cgroup/cpu/cpu.stat"
    told = [line for host in (1, 2) for line in (show.format(host), *stat(host))]
    finding = first_of(say(tmp_path, "n1 has ranks 0-3, n2 has ranks 4-7", *told))

    assert (finding.culprits.ranks, finding.culprits.nodes) == ([4, 5, 6, 7], ["n2"])
