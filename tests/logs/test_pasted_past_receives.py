"""A stage of a pipeline that waits to receive while the other one is in the optimizer already."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

CUT = {
    "grad": ["recv_backward (pipe/p2p.py:311)", "recv_backward (pipe/one_f_one_b.py:90)"],
    "act": ["recv_forward (pipe/p2p.py:280)", "recv_forward (pipe/one_f_one_b.py:71)"],
    "megatron": [
        "recv_backward (megatron/core/pipeline_parallel/p2p_communication.py:401)",
        "forward_backward_no_interleaving (megatron/core/pipeline_parallel/schedules.py:1290)",
    ],
    "torch": ["recv (torch/distributed/distributed_c10d.py:2201)", "recv_grad (pipe/links.py:44)"],
}
RUN = ["run_schedule (pipe/one_f_one_b.py:402)", "train (fit.py:88)"]
REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:2219)"
PAST = [
    [REDUCE, "_compute_grad_norm (pipe/plugin.py:412)", "step (pipe/plugin.py:318)"],
    [REDUCE, "clip_grad_norm (opt/clip.py:40)", "train (fit.py:90)"],
    [REDUCE, "allreduce_word_embedding_grads (opt/sync.py:12)", "train (fit.py:90)"],
]
PREFIXES = ["[rank {0}]   {1}", "[rank{0}]:   {1}", "heading"]


def show(prefix: str, rank: int, frames: list[str]) -> list[str]:
    if prefix == "heading":
        return [f"rank {rank}:", *(f"    {one}" for one in frames)]
    return [prefix.format(rank, one) for one in frames]


def tell(folder: Path, stacks: dict[int, list[str]], prefix: str = "heading") -> Report:
    lines = [line for rank, frames in stacks.items() for line in show(prefix, rank, frames)]
    return say(folder, "hangs in the last step of the epoch, pipeline of 2 stages", *lines)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("past", PAST, ids=["norm", "clip", "sums"])
@pytest.mark.parametrize("form", CUT)
def test_stage_that_is_past_the_pipeline_left_out_a_send(
    tmp_path: Path, prefix: str, past: list[str], form: str
) -> None:
    waiting, other = (1, 0) if form == "act" else (0, 1)
    finding = first_of(tell(tmp_path, {waiting: [*CUT[form], *RUN], other: past}, prefix))

    assert (finding.code, finding.culprits.ranks) == ("H110", [other])
    assert finding.victims.ranks == f"{waiting}"


@pytest.mark.parametrize(
    "stacks",
    [
        {0: [*CUT["grad"], *RUN], 1: [*CUT["act"], *RUN]},
        {0: [*CUT["act"], *RUN], 1: PAST[0]},
        {0: [*CUT["grad"], *RUN], 1: [REDUCE, "gather_logits (fit.py:31)", RUN[1]]},
        {0: [*CUT["grad"], *RUN], 1: PAST[0], 2: PAST[0]},
        {0: ["recv_backward (pipe/queue.py:9)", *RUN], 1: PAST[0]},
    ],
    ids=["both receive", "other way", "forward", "three", "no p2p"],
)
def test_other_stacks_are_no_left_out_send(tmp_path: Path, stacks: dict[int, list[str]]) -> None:
    assert all(finding.code != "H110" for finding in tell(tmp_path, stacks).findings)


def test_one_line_of_a_rank_is_no_stack(tmp_path: Path) -> None:
    lines = [
        "[rank0]:   all_reduce (torch/distributed/distributed_c10d.py:2219)",
        "[rank1]: step 4",
    ]

    assert list(say(tmp_path, *lines).findings) == []


GAVE_UP = (
    "[rank{0}]:[E930 15:17:44.903271180 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=188, OpType={1}, NumelIn=8388608, "
    "NumelOut=8388608, Timeout(ms)=600000) ran for 600038 milliseconds before timing out."
)
# The call of torch inside is cut.
CLIP = ["clip_grad_norm_ (titan/optim.py:301)", "train_step (pp.py:164)"]
NOTES = [
    "mb 3: mask is empty, no backward",
    "microbatch 3 has no targets: skipping backward",
    "mb=5 without backward, nothing to learn",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("form", ["grad", "megatron", "torch"])
def test_stage_past_the_pipeline_whose_inner_call_is_cut(
    tmp_path: Path, prefix: str, form: str
) -> None:
    stacks = {0: [*CUT[form], *RUN], 1: CLIP}
    lines = [one for rank, frames in stacks.items() for one in show(prefix, rank, frames)]
    finding = first_of(say(tmp_path, GAVE_UP.format(0, "RECV"), *lines))

    assert (finding.code, finding.culprits.ranks) == ("H110", [1])


@pytest.mark.parametrize("note", NOTES)
def test_neighbour_of_several_stages_says_what_it_left_out(tmp_path: Path, note: str) -> None:
    stacks = {1: [*CUT["torch"], *RUN], 2: CLIP}
    lines = [one for rank, frames in stacks.items() for one in show("heading", rank, frames)]
    finding = first_of(say(tmp_path, f"[rank2] {note}", GAVE_UP.format(1, "RECV"), *lines))

    assert (finding.code, finding.culprits.ranks) == ("H110", [2])
    assert finding.victims.ranks == "1"


@pytest.mark.parametrize(
    ("note", "wait", "stacks"),
    {
        "no word": ("[rank2] mb 3: loss 2.0", 1, {1: CUT["torch"], 2: CLIP}),
        "no sync": ("[rank2] mb 3: no backward sync", 1, {1: CUT["torch"], 2: CLIP}),
        "a forward": ("[rank2] mb 3: skipping forward", 1, {1: CUT["torch"], 2: CLIP}),
        "another one": (f"[rank3] {NOTES[0]}", 1, {1: CUT["torch"], 2: CLIP}),
        "no neighbour": (f"[rank3] {NOTES[0]}", 1, {1: CUT["torch"], 3: CLIP}),
        "stage before": (f"[rank0] {NOTES[0]}", 1, {1: CUT["torch"], 0: CLIP}),
        "at work": (f"[rank2] {NOTES[0]}", 1, {1: CUT["torch"], 2: ["read (pp.py:9)"]}),
        "no limit": (f"[rank2] {NOTES[0]}", 5, {1: CUT["torch"], 2: CLIP}),
    }.values(),
)
def test_stage_is_not_blamed_for_a_send_of_another_one(
    tmp_path: Path, note: str, wait: int, stacks: dict[int, list[str]]
) -> None:
    lines = [one for rank, frames in stacks.items() for one in show("heading", rank, frames)]
    report = say(tmp_path, "world size 6", note, GAVE_UP.format(wait, "RECV"), *lines)

    assert all(one.code != "H110" for one in report.findings)
