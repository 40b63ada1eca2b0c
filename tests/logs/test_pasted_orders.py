"""Ranks that wait in each other's groups, by watchdogs and what is shown of members and orders."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

TIMEOUT = (
    "[rank{0}]:[E0404 16:20:03.330115221 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn={2}, "
    "NumelOut={2}, Timeout(ms)=1800000) ran for 1800014 milliseconds before timing out."
)
STATUS = (
    "[rank{0}]:[E0404 16:20:03.330290714 ProcessGroupNCCL.cpp:1785] [PG ID {3} PG GUID {3}({1}) "
    "Rank {0}] Exception (either an error or timeout) detected by watchdog at work: 88, last "
    "enqueued NCCL work: 88, last completed NCCL work: 87."
)
MEMBERS = {
    "variable": '            group: "{0}_group ranks=[0, 1]"',
    "created": "created {0}_group with ranks [0, 1]",
    "process group": "process group {0} members: (0, 1)",
    "assigned": "{0}_group = [0, 1]",
}
ORDERS = {
    "variables": ["        Locals:", "            rank: {0}", '            order: ["{1}", "{2}"]'],
    "signed": ["[rank{0}]: INFO reduce order: {1}, {2}"],
    "named": ["rank {0}: group order = {1} -> {2}"],
    "then": ["[rank{0}]: order of groups: {1}_group then {2}_group"],
}


def wait(rank: int, group: str, number: int, size: int = 2765569) -> list[str]:
    text = f"{group}_group"
    return [one.format(rank, text, size, number) for one in (TIMEOUT, STATUS)]


def list_named(report: Report) -> set[int]:
    return {rank for one in report.findings for rank in one.culprits.ranks}


WAITS = [*wait(0, "disc", 2), *wait(1, "gen", 1, 41126020)]


def show(form: str, *orders: tuple[int, str, str]) -> list[str]:
    return [line.format(*order) for order in orders for line in ORDERS[form]]


CROSSED = ((0, "disc", "gen"), (1, "gen", "disc"))


@pytest.mark.parametrize("members", MEMBERS)
@pytest.mark.parametrize("order", ORDERS)
def test_two_ranks_with_opposite_orders_are_a_ring(
    tmp_path: Path, members: str, order: str
) -> None:
    known = [MEMBERS[members].format(name) for name in ("disc", "gen")]
    report = say(tmp_path, *known, *show(order, *CROSSED), "", *WAITS)
    finding = first_of(report)

    assert (finding.name, finding.culprits.ranks) == ("group-order-cycle", [0, 1])
    assert finding.details == {"ring": [0, 1], "groups": ["disc", "gen"]}


KNOWN = [MEMBERS["created"].format(name) for name in ("disc", "gen")]
OPEN = {
    "no order": [],
    "one order": show("signed", CROSSED[0]),
    "one order of both": show("signed", (0, "disc", "gen"), (1, "disc", "gen")),
    "order of other things": ["[rank0]: order: tea, milk", "[rank1]: order: milk, tea"],
}


@pytest.mark.parametrize("name", OPEN)
def test_two_ranks_without_opposite_orders_are_not_named(tmp_path: Path, name: str) -> None:
    report = say(tmp_path, *KNOWN, *OPEN[name], *WAITS)
    finding = first_of(report)

    assert (finding.name, finding.confidence) == ("group-order-cycle", "possible")
    assert not list_named(report)


def test_ring_of_three_groups_is_named_by_its_members(tmp_path: Path) -> None:
    known = ["a_group ranks=[0, 1]", "b_group ranks=[1, 2]", "c_group ranks=[0, 2]"]
    waits = [*wait(0, "a", 1), *wait(1, "b", 2), *wait(2, "c", 3)]
    finding = first_of(say(tmp_path, *known, *waits))

    assert (finding.name, finding.culprits.ranks) == ("group-order-cycle", [0, 1, 2])


NONE = {
    "members are not shown": WAITS,
    "groups share no rank": ["disc_group ranks=[0, 2]", "gen_group ranks=[1, 3]", *WAITS],
    "both are in one group": [*KNOWN, *wait(0, "gen", 1), *wait(1, "gen", 1)],
    "one has come to the other": [*KNOWN, *WAITS, STATUS.format(1, "disc_group", 0, 2)],
    "they wait for a third": [
        "disc_group ranks=[0, 1, 2]",
        "gen_group ranks=[1, 3]",
        *WAITS,
    ],
}


@pytest.mark.parametrize("name", NONE)
def test_groups_that_make_no_ring_are_none(tmp_path: Path, name: str) -> None:
    report = say(tmp_path, *NONE[name], *show("signed", *CROSSED))

    assert "group-order-cycle" not in {one.name for one in report.findings}


SAID = [
    "r0 would do the gen one next, r1 the disc one next",
    "# rank 0 calls gen_group next, rank 1 would call disc after that",
    "so rank 0 will enter the gen group later; rank 1 does disc afterwards",
]


@pytest.mark.parametrize("text", SAID)
def test_what_ranks_would_call_next_tells_their_orders(tmp_path: Path, text: str) -> None:
    finding = first_of(say(tmp_path, *KNOWN, *WAITS, text))

    assert (finding.name, finding.culprits.ranks) == ("group-order-cycle", [0, 1])


@pytest.mark.parametrize(
    "text",
    [
        "r0 would do the gen one next, r1 the gen one next",
        "r0 would do the gen one next",
        "rank 0 would load data next, rank 1 the disc one next",
        "r0 would do the gen one next, r3 the disc one next",
    ],
)
def test_what_only_one_rank_would_call_next_leaves_it_open(tmp_path: Path, text: str) -> None:
    report = say(tmp_path, *KNOWN, *WAITS, text)

    assert first_of(report).confidence == "possible"
    assert not list_named(report)


def test_groups_that_a_rank_prints_and_the_line_below_a_timeout_are_enough(
    tmp_path: Path,
) -> None:
    status = STATUS.replace(" at work: 88", " at work sequence id: 88")
    lines = [
        "[rank0]: groups: tp=[0, 1] ep=[0, 1]",
        *wait(0, "ep", 4),
        status.format(1, "tp", 0, 2),
    ]
    finding = first_of(say(tmp_path, *lines, "r0 would do tp next, r1 ep next"))

    assert (finding.name, finding.culprits.ranks) == ("group-order-cycle", [0, 1])


MEGATRON = [*wait(0, "EXPERT_MODEL_PARALLEL", 7), *wait(1, "TENSOR_MODEL_PARALLEL", 3)]
BOTH = [
    "# both groups are [0, 1]",
    "the two groups have the same members (0, 1)",
    "all process groups are ranks [0, 1]",
    "EXPERT_MODEL_PARALLEL_GROUP = [0, 1], TENSOR_MODEL_PARALLEL_GROUP = [0, 1]",
]
CALLED = {
    "chain": (
        "rank0: wait <- all_reduce <- aux (moe/r.py:18) group=ep ; tp_sum (tp/l.py:3) comes after",
        "rank1: wait <- all_reduce <- tp_sum (tp/l.py:3) group=tp ; aux (moe/r.py:18) comes after",
    ),
    "then": (
        "rank 0: in aux() (group ep), then tp_sum()",
        "rank 1: in tp_sum() (group tp), then aux()",
    ),
    "next": (
        "r0 hangs in aux at moe/r.py:18, group: ep. next: tp_sum",
        "r1 hangs in tp_sum at tp/l.py:3, group: tp. next: aux",
    ),
}


@pytest.mark.parametrize("both", BOTH)
@pytest.mark.parametrize("form", CALLED)
def test_calls_with_their_groups_and_the_ones_behind(tmp_path: Path, both: str, form: str) -> None:
    finding = first_of(say(tmp_path, *MEGATRON, both, *CALLED[form]))

    assert (finding.name, finding.culprits.ranks) == ("group-order-cycle", [0, 1])
    assert finding.details == {"ring": [0, 1], "groups": ["ep", "tp"]}


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([BOTH[0]], id="no calls"),
        pytest.param([BOTH[0], CALLED["then"][0]], id="one call"),
        pytest.param([BOTH[0], CALLED["then"][0], "rank 1: in tp_sum() (group tp)"], id="no next"),
        pytest.param(
            [BOTH[0], CALLED["then"][0], "rank 1: in tp_sum() (group tp), then loss()"], id="other"
        ),
    ],
)
def test_calls_that_leave_the_order_open(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *MEGATRON, *lines)

    assert first_of(report).confidence == "possible"
    assert not list_named(report)


@pytest.mark.parametrize("text", ["both groups are [0, 2]", "both hosts have GPUs [0, 1]", ""])
def test_members_of_other_things(tmp_path: Path, text: str) -> None:
    report = say(tmp_path, *MEGATRON, text, *CALLED["chain"])

    assert "group-order-cycle" not in {one.name for one in report.findings}


GATHER = (
    "[rank{0}]:[E0404 16:20:03.330115221 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=88, OpType={2}, NumelIn={3}, "
    "NumelOut={4}, Timeout(ms)=1800000) ran for 1800014 milliseconds before timing out."
)
CHAINS = {
    "arrow": "[rank{0}] layer 3: {1}({2}) -> {3}({4})",
    "comma": "rank {0} calls {1}[{2}], {3}[{4}]",
    "then": "[rank{0}]: {1}(group={2}) then {3}(group={4})   # by the config",
    "sign": "rank {0}: dist.{1}(pg='{2}') → dist.{3}(pg='{4}')",
}
CALLS = {"seq": "all_gather_into_tensor", "moe": "all_to_all_single"}


def gather(rank: int, group: str, *, members: int = 2, op: str = "_ALLGATHER_BASE") -> list[str]:
    number = 3 if group == "seq" else 4
    waited = GATHER.format(rank, group, op, 4096, 4096 * members)
    return [waited, STATUS.format(rank, group, 4096, number)]


def chain(form: str, rank: int, *groups: str) -> str:
    return CHAINS[form].format(rank, CALLS[groups[0]], groups[0], CALLS[groups[1]], groups[1])


OPPOSITE = [chain("comma", 0, "seq", "moe"), chain("comma", 1, "moe", "seq")]
MOVE = gather(1, "moe", members=1, op="ALLTOALL_BASE")


@pytest.mark.parametrize("form", CHAINS)
@pytest.mark.parametrize("world", [["WORLD_SIZE=2"], []])
def test_two_ranks_of_groups_of_two_that_tell_their_calls_in_opposite_order_are_a_ring(
    tmp_path: Path, world: list[str], form: str
) -> None:
    orders = [chain(form, 0, "seq", "moe"), chain(form, 1, "moe", "seq")]
    finding = first_of(say(tmp_path, *world, *orders, *gather(0, "seq"), *MOVE))

    assert (finding.name, finding.culprits.ranks) == ("group-order-cycle", [0, 1])


@pytest.mark.parametrize(
    "lines",
    [
        [chain("arrow", 0, "seq", "moe"), chain("arrow", 1, "seq", "moe"), *gather(0, "seq")],
        [chain("arrow", 0, "moe", "seq"), chain("arrow", 1, "seq", "moe"), *gather(0, "seq")],
        [chain("arrow", 0, "seq", "moe"), *gather(0, "seq")],
        gather(0, "seq"),
        [*OPPOSITE, *gather(0, "seq", members=4)],
        [*OPPOSITE, *gather(0, "seq", members=1, op="ALLREDUCE")],
        ["WORLD_SIZE=8", *OPPOSITE, *gather(0, "seq")],
        [*OPPOSITE, *gather(0, "seq"), "[rank2]: ncclSystemError: System call"],
        [*OPPOSITE, *(line.replace("[Rank 0]", "[Rank 3]") for line in gather(0, "seq"))],
    ],
    ids=[
        "one order", "each in its second", "order of one", "no order", "groups of four",
        "no sizes", "eight ranks", "a third rank", "other number in its group",
    ],
)  # fmt: skip
def test_two_ranks_whose_groups_may_have_others_are_not_named(
    tmp_path: Path, lines: list[str]
) -> None:
    report = say(tmp_path, *lines, *MOVE)

    assert all(one.code != "H104" or not one.culprits.ranks for one in report.findings)
