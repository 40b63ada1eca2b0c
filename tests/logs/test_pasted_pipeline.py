"""What stages of a pipeline note of micro-batches: who did not pass one on, and who only waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

# How programs note that they send and receive, that they wait, and that they leave one out.
FORMS = {
    "arrows": ("send mb={i} -> {p}", "recv mb={i} <- {p}", "waiting mb={i} <- {p}"),
    "words": (
        "sent microbatch {i} to rank {p}",
        "received microbatch {i} from rank {p}",
        "waiting for microbatch {i} from rank {p}",
    ),
    "dots": (
        "mb={i} send act to {p} ... ok",
        "mb={i} recv act from {p} ... ok",
        "mb={i} recv act from {p} ...",
    ),
    "arguments": (
        "micro_batch {i}: isend dst={p} done",
        "micro_batch {i}: irecv src={p} done",
        "micro_batch {i}: blocked in irecv src={p}",
    ),
    "activations": (
        "send fwd activation mb #{i} -> stage {p}",
        "recv fwd activation mb #{i} <- stage {p}",
        "wait fwd activation mb #{i} <- stage {p}",
    ),
}
LEFT_OUT = {
    "not forwarded": "{i} is padding only, not forwarded",
    "skip": "{i} loss mask all zero -> skip forward of this one",
    "dropped": "{i} has no tokens, dropped",
}
GLOO = "../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc"
TIMED_OUT = "Timed out waiting 1800000ms for recv operation to complete"
HEADS = {
    "bars": "rank {0} | {1}",
    "torchrun": "[rank{0}]: {1}",
    "srun": "{0}: [2024-11-05 19:12:40] stage{0} {1}",
    "stage": "[stage {0}] {1}",
}


def write(
    form: str, head: str, journals: dict[int, list[str]], *, joined: bool = False
) -> list[str]:
    """Write notes: `S6>1` that it sent 6 to 1, `R6<0` that it received it, `W7<0` that it waits."""
    send, receive, wait = FORMS[form]
    lines = []
    for rank, notes in journals.items():
        told = []
        for note in notes:
            kind, item, peer = note[0], note[1:2], note[-1]
            if kind in "SRW":
                text = {"S": send, "R": receive, "W": wait}[kind].format(i=item, p=peer)
            else:
                name = {"arrows": "mb=", "dots": "mb=", "words": "microbatch "}.get(form, "mb #")
                text = name + LEFT_OUT[note[2:]].format(i=item) if kind == "X" else note
            told.append(text)
        if joined:
            lines.append(HEADS[head].format(rank, " | ".join(told)))
        else:
            lines += [HEADS[head].format(rank, text) for text in told]
    return lines


def judge(folder: Path, *lines: str) -> tuple[str, list[int]]:
    found = first_of(say(folder, "our pipeline hangs", "", *lines))
    return found.name, found.culprits.ranks


FOUR = {
    0: ["S6>1", "S7>1", "step 340 done"],
    1: ["R6<0", "S6>2", "R7<0", "S7>2", "step 340 done"],
    2: ["R6<1", "S6>3", "R7<1", "X7not forwarded", "step 340 done"],
    3: ["R6<2", "W7<2"],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("head", HEADS)
def test_stage_that_left_a_micro_batch_out_is_named(tmp_path: Path, form: str, head: str) -> None:
    assert judge(tmp_path, *write(form, head, FOUR)) == ("p2p-unmatched", [2])


@pytest.mark.parametrize("form", FORMS)
def test_all_notes_of_a_rank_may_be_in_one_line(tmp_path: Path, form: str) -> None:
    assert judge(tmp_path, *write(form, "bars", FOUR, joined=True)) == ("p2p-unmatched", [2])


@pytest.mark.parametrize("word", LEFT_OUT)
def test_stages_behind_it_only_wait(tmp_path: Path, word: str) -> None:
    journals = {
        0: ["S6>1", "S7>1"],
        1: ["R6<0", "S6>2", "R7<0", f"X7{word}"],
        2: ["R6<1", "S6>3", "W7<1"],
        3: ["R6<2", "W7<2"],
    }
    report = say(tmp_path, *write("dots", "srun", journals))

    assert (first_of(report).name, first_of(report).culprits.ranks) == ("p2p-unmatched", [1])
    assert first_of(report).victims.ranks == "2-3"


def test_one_that_says_nothing_but_ends_its_step_is_named(tmp_path: Path) -> None:
    journals = FOUR | {2: ["R6<1", "S6>3", "R7<1", "step 340 done"]}

    assert judge(tmp_path, *write("arrows", "bars", journals, joined=True)) == (
        "p2p-unmatched",
        [2],
    )


def test_one_that_sent_a_later_one_is_named(tmp_path: Path) -> None:
    journals = FOUR | {2: ["R5<1", "S5>3", "R6<1", "R7<1", "S7>3"], 3: ["R5<2", "W6<2"]}

    assert judge(tmp_path, *write("arrows", "bars", journals)) == ("p2p-unmatched", [2])


def test_receive_that_timed_out_is_of_the_one_behind_the_last(tmp_path: Path) -> None:
    journals = FOUR | {3: ["R5<2", "R6<2"]}
    error = [
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/srv/pipe/schedule.py", line 52, in _recv_hidden',
        "[rank3]:     dist.recv(self.hbuf, src=self.rank - 1)",
        '[rank3]:   File "/usr/torch/distributed/distributed_c10d.py", line 2223, in recv',
        "[rank3]:     pg.recv([tensor], group_src, tag).wait()",
        f"[rank3]: RuntimeError: [{GLOO}:81] {TIMED_OUT}",
    ]

    assert judge(tmp_path, *write("arrows", "bars", journals), "", *error) == (
        "p2p-unmatched",
        [2],
    )


OPEN: dict[str, dict[int, list[str]]] = {
    "it still works on it": FOUR | {2: ["R6<1", "S6>3", "R7<1"]},
    "it has the next one, too": FOUR | {2: ["R5<1", "S5>3", "R6<1", "R7<1"], 3: ["R5<2", "W6<2"]},
    "it waits for the same": FOUR | {2: ["R6<1", "S6>3", "W7<1"]},
    "it was sent": FOUR | {2: ["R6<1", "S6>3", "R7<1", "S7>3", "step 340 done"]},
    "it never noted a send": FOUR | {2: ["R6<1", "R7<1", "X7skip"]},
    "it has no notes": {rank: notes for rank, notes in FOUR.items() if rank != 2},
    "nobody waits": FOUR | {3: ["R6<2"]},
}


@pytest.mark.parametrize("name", OPEN)
def test_nobody_is_named_where_notes_do_not_tell(tmp_path: Path, name: str) -> None:
    report: Report = say(tmp_path, *write("arrows", "bars", OPEN[name]))

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_notes_of_stages_of_several_pipelines_name_nobody(tmp_path: Path) -> None:
    lines = ["[rank7]: step 1 loss 2.0", *write("arrows", "stage", FOUR)]
    report = say(tmp_path, "world_size=8", *lines)

    assert not {rank for one in report.findings for rank in one.culprits.ranks}
