"""What nodes told each other, judged: who is named, by which figure, and when nobody is."""

from __future__ import annotations

from typing import Any

import pytest
from tests.check.test_plan import LEAST, MOST, PLAN, SHARE, Network

from whystuck.check.check import Context
from whystuck.check.compute import torch_check
from whystuck.check.nodes.allreduce import NodeAllReduce
from whystuck.check.nodes.clocks import NodeClocks
from whystuck.check.nodes.meeting import ComparedCheck, Meet, Names
from whystuck.check.nodes.pairs import Pairs
from whystuck.check.nodes.place import MeetingPlace
from whystuck.check.nodes.speed import NodeSpeed
from whystuck.check.nodes.versions import NodeVersions
from whystuck.check.policy import read_policy
from whystuck.check.report import list_blocking, make_report
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome

CONTEXT = Context(policy=read_policy(), node="n0", meeting=MeetingPlace("n0", 9601, 4, 0))


def judge(check: ComparedCheck, nodes: int = 4, **told: Any) -> CheckResult:
    return check.judge({"nodes": {str(rank): f"n{rank}" for rank in range(nodes)}, **told}, CONTEXT)


def by_rank(*values: Any) -> dict[str, Any]:
    return {str(rank): value for rank, value in enumerate(values)}


def only(result: CheckResult) -> CheckProblem:
    (problem,) = result.problems
    return problem


# ----------------------------------------------------------------------------------------- names


def test_nodes_that_share_a_name_are_told_apart() -> None:
    names = Names({"0": "a", "1": "b", "2": "a"})

    assert names.choose([0, 1, 2]) == ("a (node rank 0)", "b", "a (node rank 2)")
    assert names.join(list(range(11))).endswith(" and 3 more")


def test_who_is_missing_is_told() -> None:
    told = {"members": {"0": "n0", "2": "n2"}, "missing": [1, 3], "interface": "eth0"}
    result = Meet().judge(told, CONTEXT)

    assert result.outcome is Outcome.INCOMPLETE
    assert result.reason == "node ranks 1, 3 did not come within 60 s"
    assert result.facts == {"came": "n0, n2", "interface": "eth0"}


# -------------------------------------------------------------------------------------- versions


def check_versions(key: str, *versions: str) -> CheckResult:
    facts = by_rank(*({key: version} for version in versions))
    return judge(NodeVersions(), len(versions), facts=facts)


def test_equal_versions_pass() -> None:
    result = check_versions("torch", "2.6", "2.6", "2.6")

    assert (result.outcome, result.facts) == (Outcome.OK, {"torch": "2.6 on all"})


@pytest.mark.parametrize(
    ("versions", "odd"),
    [
        (("2.26.2", "2.26.2", "2.25.1"), ("n2",)),
        (("2.25.1", "2.26.2", "2.26.2", "2.26.2", "2.27.3"), ("n0", "n4")),
        (("2.26.2", "2.25.1"), ()),
        (("2.26.2", "2.26.2", "2.25.1", "2.25.1"), ()),
        (("2.26.2", "2.26.2", ""), ("n2",)),
    ],
)
def test_who_is_outside_of_a_clear_majority_is_named(
    versions: tuple[str, ...], odd: tuple[str, ...]
) -> None:
    problem = only(check_versions("nccl", *versions))

    assert (problem.code, problem.nodes, problem.severity) == ("N417", odd, "warning")
    assert problem.details["versions"][versions[0]][0] == "n0"


def test_another_kernel_is_a_note() -> None:
    assert only(check_versions("kernel", "6.1", "6.1", "5.4")).severity == "note"


# ---------------------------------------------------------------------------------------- clocks


def check_clocks(*offsets_s: float, error_s: float = 0.0001) -> CheckResult:
    rows = by_rank(*({"offset_s": one, "error_s": error_s} for one in offsets_s))
    return judge(NodeClocks(), len(offsets_s), clocks=rows)


def test_clocks_in_step_pass_with_their_spread() -> None:
    result = check_clocks(0.0, 0.002, -0.001)

    assert result.outcome is Outcome.OK
    assert result.figures["spread_ms"] == pytest.approx(3.0)
    assert result.facts["n1"] == "+2 ms ± 0.1 ms"


@pytest.mark.parametrize(
    ("offsets", "node", "way"),
    [((0.0, 3.0, 0.001), "n1", "3 s ahead of"), ((0.0, 3.0, 3.001), "n0", "3 s behind")],
)
def test_the_clock_that_is_off_is_named_also_where_it_is_the_first(
    offsets: tuple[float, ...], node: str, way: str
) -> None:
    problem = only(check_clocks(*offsets))

    assert (problem.code, problem.nodes, problem.severity) == ("N406", (node,), "warning")
    assert f"the clock of {node} is {way} the median of all nodes" in problem.text


def test_of_two_clocks_none_is_named() -> None:
    problem = only(check_clocks(0.0, 100.0))

    assert (problem.nodes, problem.severity) == ((), "error")


def test_an_offset_within_what_was_measured_is_none() -> None:
    assert check_clocks(0.0, 0.7, 0.0, error_s=0.3).outcome is Outcome.OK


def test_a_clock_that_was_not_measured_is_told() -> None:
    rows = by_rank({"offset_s": 0.0, "error_s": 0.0}, {"problem": "refused"})

    assert judge(NodeClocks(), 2, clocks=rows).reason == "not measured on n1: refused"


# ----------------------------------------------------------------------------------------- speed


@pytest.mark.parametrize(
    ("kind", "speeds", "node"),
    [
        ("NVIDIA H100", (700, 690, 610), ("n2",)),
        ("NVIDIA H100", (700, 690, 650), None),
        ("host, 8 threads", (1.0, 0.9, 0.4), ("n2",)),
        ("host, 8 threads", (1.0, 0.9, 0.6), None),
        ("NVIDIA H100", (700, 300), None),
    ],
)
def test_a_slow_node_is_named_by_the_median_of_its_kind(
    kind: str, speeds: tuple[float, ...], node: tuple[str, ...] | None
) -> None:
    told = by_rank(*({kind: speed} for speed in speeds))
    problems = judge(NodeSpeed(), len(speeds), tflops=told).problems

    assert [one.nodes for one in problems] == ([node] if node else [])


# ----------------------------------------------------------------------------------------- pairs


def check_pairs(network: Network) -> CheckResult:
    rounds = [[dict(row, bytes=1 << 20, ranks=2) for row in one] for one in network.run()]
    known = PLAN.judge_pairs(rounds, LEAST, SHARE)
    return judge(
        Pairs(), len(network.members), backend="gloo", rounds=len(rounds),
        limit=PLAN.find_limit(known, LEAST, SHARE), well=sorted(PLAN.list_well(known)),
        known=[dict(one, pair=list(pair)) for pair, one in sorted(known.items())],
    )  # fmt: skip


def test_good_pairs_pass_with_figures() -> None:
    result = check_pairs(Network(4))

    assert result.outcome is Outcome.OK
    assert result.figures == {"pairs": 4, "rounds": 2, "min_busbw_gbps": 1.0}
    assert "n=2" in result.facts["op"]
    assert "busbw = 2(n-1)/n" in result.facts["bus bandwidth"]
    assert result.facts["n0 - n1"] == "1 GB/s with 1 MiB"


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_bad_node_is_named_with_its_pairs(is_dead: bool) -> None:
    network = Network(4, {2})
    network.is_dead = is_dead
    problem = only(check_pairs(network))

    assert (problem.code, problem.nodes) == ("N421", ("n2",))
    assert problem.severity == ("error" if is_dead else "warning")
    assert problem.details["node_rank"] == 2
    assert ("cannot exchange data with" if is_dead else "is slow with") in problem.text
    assert problem.measures["threshold_gbps"] == pytest.approx(0.5, abs=0.02)


def test_a_bad_link_names_the_pair_and_no_node() -> None:
    problem = only(check_pairs(Network(4, links={(2, 3)})))

    assert (problem.code, problem.nodes, problem.details["pair"]) == ("N421", (), [2, 3])
    assert problem.text == "the pair n2 - n3 is slow: bus bandwidth 0.01 GB/s, below 0.5"
    assert problem.because[0] == "measured 2 times"


def test_a_pair_that_left_is_not_judged() -> None:
    rows = [[{"pair": (0, 1), "busbw": 1.0}, {"pair": (2, 3), "left": [3]}]]
    known = PLAN.judge_pairs(rows, LEAST, SHARE)
    told = [dict(one, pair=list(pair)) for pair, one in known.items()]
    for one in told:
        one["row"] = dict(one["row"], bytes=4096, ranks=2)
    result = judge(Pairs(), known=told, limit=0.5, well=[0, 1], backend="gloo", rounds=1)

    assert (result.outcome, result.problems) == (Outcome.INCOMPLETE, ())
    assert result.reason == "n3 left the check"
    assert PLAN.plan_pairs([0, 1, 2], rows, LEAST, SHARE, MOST)


# ------------------------------------------------------------------------------------- allreduce


def reduced(*wrong: int, busbw: float = 1.0) -> dict[str, Any]:
    rows = [
        {"node": rank, "wrong": count, "first_wrong": 77, "elements": 1024, "median_s": 0.1}
        for rank, count in enumerate(wrong)
    ]
    return {
        "rows": rows, "busbw": busbw, "algbw": busbw, "ranks": len(wrong), "bytes": 4096,
        "backend": "gloo", "members": list(range(len(wrong))), "wrong": sum(wrong),
    }  # fmt: skip


def test_a_good_reduction_tells_the_definition() -> None:
    result = judge(NodeAllReduce(), 3, **reduced(0, 0, 0))

    assert result.outcome is Outcome.OK
    assert result.facts["bus bandwidth"].startswith("1 GB/s, min over ranks (busbw = 2(n-1)/n")
    assert result.title == "allreduce nodes"


def test_a_slow_reduction_names_nobody() -> None:
    problem = only(judge(NodeAllReduce(), 3, **reduced(0, 0, 0, busbw=0.01)))

    assert (problem.code, problem.nodes, problem.severity) == ("N420", (), "warning")
    assert problem.measures == {"busbw_gbps": 0.01, "threshold_gbps": 0.05}


@pytest.mark.parametrize(("wrong", "nodes"), [((0, 3, 0), ("n1",)), ((3, 3, 3), ()), ((0, 3), ())])
def test_wrong_sums_are_an_error_and_name_one_node_at_most(
    wrong: tuple[int, ...], nodes: tuple[str, ...]
) -> None:
    problem = only(judge(NodeAllReduce(), len(wrong), **reduced(*wrong)))

    assert (problem.code, problem.severity, problem.nodes) == ("N419", "error", nodes)


# ---------------------------------------------------------------------------------------- others


def test_what_blames_another_node_does_not_keep_a_job_from_this_one() -> None:
    results = [judge(NodeAllReduce(), 3, **reduced(0, 3, 0))]
    report = make_report(results, 0.0)

    assert list_blocking(report, ["N419"], "n0") == []
    assert [one.code for one in list_blocking(report, ["N419"], "n1")] == ["N419"]
    assert [one.code for one in list_blocking(report, ["N419"])] == ["N419"]


@pytest.mark.parametrize(
    "told",
    [{}, {"nodes": 5}, {"nodes": {"x": 1}}, {"nodes": {"0": "a"}, "facts": [], "clocks": 1}],
)
@pytest.mark.parametrize("check", [NodeVersions(), NodeClocks(), Pairs(), NodeAllReduce()])
def test_what_is_not_understood_is_incomplete(check: ComparedCheck, told: dict[str, Any]) -> None:
    found: list[CheckResult] = []
    torch_check._take(told, check, CONTEXT, found.append)

    assert [one.outcome for one in found] == [Outcome.INCOMPLETE]
    assert "is not understood" in found[0].reason
