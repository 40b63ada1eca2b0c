"""Ranks that wait for each other in groups: their stacks, and the groups that the job prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Finding
from whystuck.parse.logs.blocks.stacks.forms import cut_note
from whystuck.parse.logs.owners.process_words import list_rank_pids
from whystuck.parse.logs.owners.said_groups import list_groups
from whystuck.pipeline import read_evidence

PIDS = [f"I'm rank {rank} of 4 host dgx-b pid 511{rank}" for rank in range(4)]
LAYOUTS = {
    "lists": "ep_groups = [[0,1],[2,3]]      dp_groups = [[0,2],[1,3]]",
    "words": "EP groups: [0, 1] [2, 3]; DP groups: [0, 2] [1, 3]",
    "long": "expert parallel group ranks [[0, 1], [2, 3]], data_parallel_group=[[0, 2], [1, 3]]",
    "numbered": "ep0=[0,1] ep1=[2,3] dp0=[0,2] dp1=[1,3]",
    "mesh": "DeviceMesh('cuda', [[0, 1], [2, 3]], mesh_dim_names=('dp', 'ep'))",
    "mesh of 2.9": "DeviceMesh((dp=2, ep=2), 'cuda', stride=(2, 1))",
    "and": "EP groups: [0,1] and [2,3]; DP groups: [0,2] and [1,3]",
    "bars": "ep group = [0,1] | [2,3]  dp group = [0,2] | [1,3]",
    "Chinese": "ep 组: [0,1] 和 [2,3]  dp 通信组: [0,2] 和 [1,3]",
    "counted": "ep group 0: [0,1]  ep group 1: [2,3]  dp group 0: [0,2]  dp group 1: [1,3]",
    "HCCL": "ep 通信域: [0,1]  [2,3]; dp 通信域: [0,2] [1,3]",
    "Japanese": "ep グループ: [0,1]、[2,3] dp グループ: [0,2]、[1,3]",
    "German": "EP-Gruppen: [0,1] und [2,3], DP-Gruppen: [0,2] und [1,3]",
    "French": "groupes ep : [0,1] et [2,3], groupes dp : [0,2] et [1,3]",
    "round": "ep=(0, 1) ep=(2, 3) dp=(0, 2) dp=(1, 3)",
}
TRANSPOSED = "DeviceMesh((dp=2, ep=2), 'cuda', stride=(1, 2))"
# How people say at a frame which group a call is of.
WORDS = [
    "# group={0}",
    "# {0} group",
    "# waits on self.{0}_group",
    "# all_reduce({0}_pg)",
    "<-- {0}",
]
FRAMES = [
    'Thread 511{rank} (active): "MainThread"',
    "    all_reduce (torch/distributed/distributed_c10d.py:2810)",
    "    wrapper (torch/distributed/c10d_logger.py:81)",
    "    {call} (moe.py:{line}){note}",
    "    train_step (moe.py:140)",
    "    <module> (moe.py:192)",
]
RING = ("ep", "dp", "dp", "ep")


def show(rank: int, group: str, note: str, call: str = "reduce") -> list[str]:
    line = 91 if group == "ep" else 104
    note = f"     {note.format(group)}" if note else ""
    return [one.format(rank=rank, line=line, note=note, call=call) for one in FRAMES]


def paste(groups: tuple[str, ...], layout: str, note: str, call: str = "f") -> list[str]:
    stacks = [
        line
        for rank, group in enumerate(groups)
        for line in show(rank, group, note, call.format(group))
    ]
    return [*PIDS[: len(groups)], LAYOUTS[layout], "$ py-spy dump", *stacks]


def judge(
    folder: Path, groups: tuple[str, ...], layout: str, note: str, call: str = "f"
) -> Finding:
    return first_of(say(folder, *paste(groups, layout, note, call)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("note", WORDS)
def test_ring_through_printed_groups_is_named(tmp_path: Path, note: str, layout: str) -> None:
    finding = judge(tmp_path, RING, layout, note)

    assert (finding.code, finding.culprits.ranks) == ("H104", [0, 1, 2, 3])


def test_lines_of_ranks_tell_their_own_groups(tmp_path: Path) -> None:
    own = [
        f"[rank {rank}/4] gpu {rank} pid 511{rank} ep=[{rank // 2 * 2}, {rank // 2 * 2 + 1}] "
        f"dp=[{rank % 2}, {rank % 2 + 2}]"
        for rank in range(4)
    ]
    stacks = [line for rank in range(4) for line in show(rank, RING[rank], WORDS[0])]
    finding = first_of(say(tmp_path, *own, "$ py-spy dump", *stacks))

    assert (finding.code, finding.culprits.ranks) == ("H104", [0, 1, 2, 3])


def test_functions_named_after_groups_are_possible(tmp_path: Path) -> None:
    finding = judge(tmp_path, RING, "lists", "", "reduce_{0}_grads")

    assert (finding.code, finding.culprits.ranks) == ("H104", [])


def test_ranks_that_wait_in_one_group_are_no_ring(tmp_path: Path) -> None:
    for groups in (("ep", "ep", "dp", "dp"), ("ep", "ep", "ep", "ep"), ("dp", "ep", "ep", "ep")):
        report = say(tmp_path, *paste(groups, "lists", WORDS[0]))
        assert "H104" not in {one.code for one in report.findings}


def test_groups_that_nobody_printed_are_none(tmp_path: Path) -> None:
    stacks = [line for rank in range(4) for line in show(rank, RING[rank], WORDS[0])]

    assert first_of(say(tmp_path, *PIDS, "$ py-spy dump", *stacks)).code != "H104"


def test_lists_that_are_no_groups_are_left_out() -> None:
    for text in (
        "shape=[4, 8]",
        "betas (0, 1)",
        "epochs: [1, 2]",
        "expert counts: [12, 9] and [3, 4]",
        "tensor 形状: [4, 8]",
        "model 分组 shape: [4, 8]",
        "v = [3,4]",
        "ep=[0]",
        TRANSPOSED,
    ):
        assert not list(list_groups(text))


@pytest.mark.parametrize(
    "text",
    [
        "rank=3 world=8 host=dgx-b pid=5113",
        "[rank 3/8] gpu 3 pid 5113",
        "pid 5113 host n3 rank 3",
        "rank 3 on host n4, pid 5113",
    ],
)
def test_processes_of_ranks_are_told_with_more_between(text: str) -> None:
    assert (3, 5113, False) in list(list_rank_pids(text))


def test_process_behind_a_rank_may_be_the_next_one() -> None:
    for text in (
        "pid 8810 = rank 0; pid 8811 = rank 1",
        "pid 8810 = rank 0 on host n1; pid 8811 = rank 1 on host n1",
        "rank 0 of 2 pid 8810, rank 1 of 2 pid 8811",
    ):
        assert set(list_rank_pids(text)) == {(0, 8810, False), (1, 8811, False)}


def test_process_that_a_rank_speaks_of_is_not_its_own() -> None:
    for text in ("rank 0 lost peer n4 pid 33", "local rank 3 host n4 pid 55"):
        assert not [one for one in list_rank_pids(text) if not one[2]]


SHARED = [
    "ranks 0 and 1 are both in dense_pg and in expert_pg (gloo)",
    "rank 0 and 1 belong to the dense group and the expert group",
    "# ranks 0, 1 and 2 are all members of dense_group, expert_group",
]
PAIR = [
    "py-spy of rank {0}:",
    'Thread 88{0} (idle): "MainThread"',
    "    all_reduce (torch/distributed/distributed_c10d.py:2806)",
    "    sum_{1} (opt.py:{2})",
    "    step (opt.py:31)",
    "",
]
LOOP = ["$ sed -n 30,31p opt.py", "        for part in self.parts:{0}", "            part.sum()"]


def share(said: str, note: str = "", *, has_source: bool = True) -> list[str]:
    stacks = [line.format(0, "dense", 11) for line in PAIR]
    stacks += [line.format(1, "expert", 15) for line in PAIR]
    source = [line.format(note) for line in LOOP] if has_source else []
    return [said, *stacks, *source]


@pytest.mark.parametrize("said", SHARED)
@pytest.mark.parametrize("note", ["   # a set", "  # self.parts is a frozenset, unordered"])
def test_two_ranks_that_go_over_a_set_are_a_ring(tmp_path: Path, said: str, note: str) -> None:
    finding = first_of(say(tmp_path, *share(said, note)))

    assert (finding.code, finding.culprits.ranks) == ("H104", [0, 1])
    assert finding.details["groups"] == ["dense", "expert"]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(share(SHARED[0]), id="a list"),
        pytest.param(share(SHARED[0], has_source=False), id="no source"),
        pytest.param(share(SHARED[0], "   # set lr first"), id="a verb"),
    ],
)
def test_two_ranks_that_may_go_over_a_list_are_a_possible_ring(
    tmp_path: Path, lines: list[str]
) -> None:
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H104", [])


@pytest.mark.parametrize(
    "text",
    [
        "ranks 0 and 1 are not both in dense_pg and in expert_pg",
        "ranks 0 and 1 are both in dense_pg",
        "ranks 0 and 1 are in training and in evaluation",
        "ranks 0 and 1 belong to different nodes and racks",
    ],
)
def test_sentences_about_ranks_name_no_groups(text: str) -> None:
    assert not list(list_groups(text))


@pytest.mark.parametrize("text", SHARED)
def test_sentences_about_shared_groups_tell_their_members(text: str) -> None:
    found = dict(list_groups(text))

    assert set(found) == {"dense", "expert"}
    assert {0, 1} <= found["dense"] == found["expert"]


@pytest.mark.parametrize(
    "form", ["group={0}", "[pg={0}]", "process_group: {0}_group", "(group={0})"]
)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_group_between_a_function_and_its_file_is_a_note(
    tmp_path: Path, form: str, prefix: str
) -> None:
    def name(group: str) -> str:
        return f"f {form.format(group)}"

    lines = [LAYOUTS["lists"], "$ py-spy dump"]
    for rank, group in enumerate(RING):
        lines += [f"rank {rank}", *show(rank, group, "", name(group))]
    finding = first_of(say(tmp_path, *(f"{prefix}{line}" for line in lines)))

    assert (finding.code, finding.culprits.ranks) == ("H104", [0, 1, 2, 3])
    assert {place.function for place in finding.where} == {"f"}


@pytest.mark.parametrize("groups", [("ep",) * 4, ("dp",) * 4, ("ep", "ep", "dp", "dp")])
def test_groups_between_function_and_file_that_are_no_ring(
    tmp_path: Path, groups: tuple[str, ...]
) -> None:
    lines = [LAYOUTS["lists"], "$ py-spy dump"]
    for rank, group in enumerate(groups):
        lines += [f"rank {rank}", *show(rank, group, "", f"f group={group}")]
    report = say(tmp_path, *lines)

    assert not any(one.code == "H104" and one.culprits.ranks for one in report.findings)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("    f group=tp (moe.py:91)", "group=tp"),
        ("    f (moe.py:91)", ""),
        ("    f groups tp (moe.py:91)", ""),
        ("    f<- group=tp (moe.py:91)", ""),
        ("    operator() (moe.cpp:91)", ""),
    ],
)
def test_note_between_function_and_file_is_cut(text: str, note: str) -> None:
    assert cut_note(text) == ("    f (moe.py:91)" if note else text, note)


TERMS = [
    "py-spy of rank {0}:",
    'Thread 88{0} (idle): "MainThread"',
    "    all_reduce (torch/distributed/distributed_c10d.py:2806)",
    "    mean_{1} (terms.py:{2})      # group={1}",
    "    {1}_term (terms.py:{2}1)",
    "    total (terms.py:70)",
    "",
]
SETS = {
    "named": "terms.py:70   return sum(term(x) for term in set(self.terms))",
    "grep": "terms.py:70:    return sum(term(x) for term in set(self.terms))",
    "sed": "$ sed -n 70p terms.py\n    losses = [term(x) for term in frozenset(self.terms)]",
}


def list_terms(source: str, second: str = "lat") -> list[str]:
    stacks = [line.format(0, "lon", 11) for line in TERMS]
    return [*stacks, *(line.format(1, second, 15) for line in TERMS), source]


@pytest.mark.parametrize("form", SETS)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_line_that_goes_over_a_set_leads_to_groups_in_any_order(
    tmp_path: Path, form: str, prefix: str
) -> None:
    lines = "\n".join(list_terms(SETS[form])).split("\n")
    finding = first_of(say(tmp_path, *(f"{prefix}{line}" for line in lines)))

    assert (finding.code, finding.culprits.ranks) == ("H104", [0, 1])
    assert finding.details["groups"] == ["lat", "lon"]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(list_terms(""), id="no source"),
        pytest.param(list_terms(SETS["named"].replace("set(self.terms)", "self.terms")), id="list"),
        pytest.param(
            list_terms(SETS["named"].replace("set(self.terms)", "sorted(set(self.terms))")),
            id="sorted",
        ),
        pytest.param(list_terms(SETS["named"].replace(":70", ":71")), id="another line"),
        pytest.param(list_terms(SETS["named"], "lon"), id="one group"),
        pytest.param(
            [line.partition("  #")[0] for line in list_terms(SETS["named"])], id="no notes"
        ),
    ],
)
def test_groups_in_the_same_order_are_no_ring(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines)

    assert not any(one.code == "H104" and one.culprits.ranks for one in report.findings)


@pytest.mark.parametrize("loop", ["for part in sorted(set(self.parts)):", "for part in parts:"])
def test_loop_over_what_is_sorted_has_an_order(tmp_path: Path, loop: str) -> None:
    lines = [
        f"        {loop}" if line.startswith("        for ") else line for line in share(SHARED[0])
    ]

    assert first_of(say(tmp_path, *lines)).culprits.ranks == []


@pytest.mark.parametrize(
    "text",
    ["train.py:88 return code 3", "train.py:88 if it hangs", "train.py:88 step(x)", "a.py:8 for 9"],
)
def test_words_behind_a_place_are_no_source(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.log").write_text(f"{text}\n")

    assert not read_evidence(tmp_path).sources


# What ranks print before they enter a call.
ENTERED = [
    "[rank{0}] before all_reduce on {1}",
    "rank {0} 11:20:31 entering dist.all_reduce(group={1})",
    "[r{0}] => allreduce, pg {1}",
]
BOTH = [
    "both groups are new_group([0, 1])",
    "The two process groups have the same members [0, 1], one for the heads, one for experts",
]
UNORDERED = [
    "every rank does both in a step, the order comes from a set of hooks",
    "each of the two calls both, I iterate over a set there",
]


def enter(form: str, *said: str, groups: tuple[str, str] = ("dense", "expert")) -> list[str]:
    printed = [form.format(rank, group) for rank, group in enumerate(groups)]
    stacks = [line.format(0, "a", 11) for line in PAIR]
    stacks += [line.format(1, "b", 15) for line in PAIR]
    return [*said, *printed, "", *stacks]


@pytest.mark.parametrize("form", ENTERED)
@pytest.mark.parametrize("both", BOTH)
@pytest.mark.parametrize("unordered", UNORDERED)
def test_groups_that_ranks_print_when_they_enter_a_call(
    tmp_path: Path, form: str, both: str, unordered: str
) -> None:
    finding = first_of(say(tmp_path, *enter(form, both, unordered)))

    assert (finding.code, finding.culprits.ranks) == ("H104", [0, 1])
    assert finding.details["groups"] == ["dense", "expert"]


def test_entered_groups_without_what_is_said_of_their_order_name_nobody(tmp_path: Path) -> None:
    for said in (BOTH[0], f"{BOTH[0]}; the order does not depend on a set"):
        finding = first_of(say(tmp_path, *enter(ENTERED[0], said)))
        assert (finding.code, finding.culprits.ranks) == ("H104", [])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(enter(ENTERED[0], UNORDERED[0]), id="members unknown"),
        pytest.param(enter(ENTERED[0], *BOTH, *UNORDERED, groups=("dense", "dense")), id="one"),
        pytest.param(enter("rank {0} left all_reduce on {1}", BOTH[0], UNORDERED[0]), id="is over"),
        pytest.param(enter("[r{0}] -> broadcast on {1}", BOTH[0], UNORDERED[0]), id="other op"),
        pytest.param(
            enter(ENTERED[0], "both groups are new_group([2, 3])", UNORDERED[0]), id="others"
        ),
    ],
)
def test_entered_groups_that_make_no_ring(tmp_path: Path, lines: list[str]) -> None:
    assert "H104" not in {one.code for one in say(tmp_path, *lines).findings}
