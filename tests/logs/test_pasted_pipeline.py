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


# Stages that wait in receives, as faulthandler and py-spy show them.
SPY = """\
== pid 70{rank}  rank {rank}
Thread 70{rank} (idle): "MainThread"
    recv (torch/distributed/distributed_c10d.py:2330)
    wrapper (torch/distributed/c10d_logger.py:81)
    {function} (pipe/stage.py:{line}){note}
    run_1f1b (pipe/stage.py:{outer})
    <module> (pipe/main.py:30)
"""
FAULT = """\
rank {rank}:
Thread 0x00007f6b1a7fc74{rank} (most recent call first):
  File "/opt/py/torch/distributed/distributed_c10d.py", line 2330 in recv
  File "/opt/py/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/kim/pipe/stage.py", line {line} in {function}{note}
  File "/home/kim/pipe/stage.py", line {outer} in run_1f1b
  File "/home/kim/pipe/main.py", line 30 in <module>
"""
TOOLS = {"py-spy": SPY, "faulthandler": FAULT}
NAMES = {"act": ("recv_act", "recv_grad"), "fwd": ("recv_forward", "recv_backward")}
# How people say at a frame what it waits for.
COMMENTS = {
    "arguments": "        # src={0}, mb=6",
    "words": "     # mb 6 from rank {0}",
    "arrow": "   <-- microbatch 6 from stage {0}",
    "none": "",
}
# What ranks print: of one that leaves out a micro-batch, and of those that say no peer.
SHORT = [
    "[stage0/rank0] mb 5 sent  mb 6 sent  mb 7 sent   -> waiting for grads",
    "[stage1/rank1] mb 5 fwd sent to 2",
    "[stage1/rank1] mb 6 fwd: mask all zero, nothing to forward, skip",
    "[stage2/rank2] mb 5 recv ok",
    "[stage3/rank3] mb 5 recv ok",
]


def show(tool: str, names: tuple[str, str], comment: str = "") -> list[str]:
    """Write the stacks of four stages: two wait for gradients, two for activations."""
    stacks = []
    for rank in range(4):
        is_act = rank > 1
        told = {"function": names[0] if is_act else names[1], "line": 71 if is_act else 84}
        note = comment.format(rank - 1) if is_act else ""
        outer = 133 if is_act else 141
        stacks.append(TOOLS[tool].format(rank=rank, outer=outer, note=note, **told))
    return "\n".join(stacks).splitlines()


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("comment", COMMENTS)
def test_what_a_stage_waits_for_is_told_by_its_stack(
    tmp_path: Path, tool: str, names: str, comment: str
) -> None:
    report = say(tmp_path, *SHORT, "", *show(tool, NAMES[names], COMMENTS[comment]))

    assert (first_of(report).name, first_of(report).culprits.ranks) == ("p2p-unmatched", [1])
    assert first_of(report).victims.ranks == "0,2-3"


@pytest.mark.parametrize("tool", TOOLS)
def test_receives_of_several_lines_name_nobody(tmp_path: Path, tool: str) -> None:
    report = say(tmp_path, *show(tool, NAMES["act"]))

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_receives_of_one_line_are_a_ring(tmp_path: Path) -> None:
    told = {"function": "swap", "line": 12, "outer": 40, "note": ""}
    stacks = [SPY.format(rank=rank, **told) for rank in range(4)]
    found = first_of(say(tmp_path, *"\n".join(stacks).splitlines()))

    assert (found.name, found.culprits.ranks) == ("p2p-cycle", [0, 1, 2, 3])


def test_stage_that_left_out_a_gradient_is_named(tmp_path: Path) -> None:
    notes = [
        "[stage2/rank2] mb 3 bwd grad sent to 1",
        "[stage2/rank2] mb 4 bwd: no grad, not sent, skip",
        "[stage1/rank1] mb 3 grad recv from 2 ok",
    ]
    stacks = []
    for rank in range(4):
        is_act = rank > 1
        told = {"function": "recv_act" if is_act else "recv_grad", "line": 71 if is_act else 84}
        note = "    # src=2, mb=4" if rank == 1 else ""
        stacks.append(SPY.format(rank=rank, outer=133 if is_act else 141, note=note, **told))
    report = say(tmp_path, *notes, "", *"\n".join(stacks).splitlines())

    assert (first_of(report).name, first_of(report).culprits.ranks) == ("p2p-unmatched", [2])


# Notes that name no peer: the ranks tell who is next, as the first one only sends activations.
UNNAMED = {
    "bracket": ("[r{0}] mb {1} send fwd done", "[r{0}] mb {1} recv fwd done", "[r{0}] mb {1} {2}"),
    "torchrun": (
        "[rank{0}]: sent act micro-batch {1}",
        "[rank{0}]: received act micro-batch {1}",
        "[rank{0}]: micro-batch {1} {2}",
    ),
    "stage": (
        "[stage {0}] fwd send mb={1} ok",
        "[stage {0}] fwd recv mb={1} ok",
        "[stage {0}] mb={1} {2}",
    ),
}
IN_SLEEP = """\
rank{0}
Thread 70{0} (idle): "MainThread"
    {1} (hand.py:64)
    run_first (hand.py:81)
    main (hand.py:139)"""
IN_RECEIVE = """\
rank{0}
Thread 70{0} (active): "MainThread"
    recv (torch/distributed/distributed_c10d.py:1913)
    wrapper (torch/distributed/c10d_logger.py:75)
    recv_forward (hand.py:40)
    main (hand.py:141)"""


def note(form: str, stages: int, words: str) -> list[str]:
    send, receive, other = UNNAMED[form]
    lines = [
        line.format(rank, item)
        for item in (4, 5)
        for rank in range(stages)
        for line in ((receive,) if rank else ()) + ((send,) if rank < stages - 1 else ())
    ]
    lines.append(other.format(0, 6, words))
    return [*lines, *(other.format(rank, 6, "recv fwd ...") for rank in range(1, stages))]


@pytest.mark.parametrize("form", UNNAMED)
@pytest.mark.parametrize("stages", [2, 3])
def test_neighbours_are_told_by_who_sends_and_who_receives(
    tmp_path: Path, form: str, stages: int
) -> None:
    found = first_of(say(tmp_path, *note(form, stages, "skipped (empty), waits for the sampler")))

    assert (found.name, found.culprits.ranks) == ("p2p-unmatched", [0])


@pytest.mark.parametrize("function", ["_sleep_until_ready", "next_item", "wait_for_flag"])
def test_what_a_rank_notes_tells_more_than_where_it_is_now(tmp_path: Path, function: str) -> None:
    stacks = [IN_RECEIVE.format(1), IN_SLEEP.format(0, function)]
    lines = "\n".join([*stacks, "", *note("bracket", 2, "skipped (empty)")]).splitlines()
    found = first_of(say(tmp_path, *lines))

    assert (found.name, found.culprits.ranks) == ("p2p-unmatched", [0])
    assert found.victims.ranks == "1"


@pytest.mark.parametrize("words", ["fwd ...", "waiting for the sampler", "send fwd done"])
def test_stage_that_does_not_say_that_it_left_it_out_is_not_named_by_notes(
    tmp_path: Path, words: str
) -> None:
    report = say(tmp_path, *note("bracket", 2, words))

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_ranks_of_which_two_only_send_are_no_neighbours(tmp_path: Path) -> None:
    lines = [f"[r{rank}] mb 5 send fwd done" for rank in (0, 1)]
    lines += [f"[r{rank}] mb 5 recv fwd done" for rank in (2, 3)]
    lines += ["[r0] mb 6 skipped", *(f"[r{rank}] mb 6 recv fwd ..." for rank in (2, 3))]
    report = say(tmp_path, *lines)

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


GIVES_UP = f"[rank0]: RuntimeError: [{GLOO}:78] {TIMED_OUT}"
RANGES = {
    "dots": [
        "[stage0] sent act mb=0..5",
        "[stage1] recv act mb=0..5",
        "[stage1] sent grad mb=0..4",
    ],
    "dash": [
        "stage 0: sent activations, microbatches 0-5",
        "stage 1: received activations, microbatches 0-5",
        "stage 1: sent grads of microbatches 0 to 4",
    ],
}
WAITS_FOR = {
    "dots": "[stage0] irecv grad mb=5 from 1 ...",
    "dash": "stage 0: waiting for grad of microbatch 5 from stage 1",
}
RETURNS = {
    "before": "mb=5 has 0 valid targets -> return before send_grad",
    "without": "microbatch 5: loss is empty, returned without sending the grad",
    "continue": "mb=5 no targets, continue before isend of grad",
}


@pytest.mark.parametrize("form", RANGES)
@pytest.mark.parametrize("why", RETURNS)
@pytest.mark.parametrize("wait", [True, False], ids=["gave up", "hangs"])
def test_stage_that_returned_before_it_sent_is_named(
    tmp_path: Path, form: str, why: str, *, wait: bool
) -> None:
    head = RANGES[form][1].partition(" recv" if form == "dots" else " rece")[0]
    lines = [RANGES[form][0], WAITS_FOR[form], *RANGES[form][1:], f"{head} {RETURNS[why]}"]

    assert judge(tmp_path, *lines, *([GIVES_UP] if wait else [])) == ("p2p-unmatched", [1])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*RANGES["dots"][:2], "[stage1] sent grad mb=0..5"], id="all sent"),
        pytest.param([*RANGES["dots"], "[stage1] return before the barrier"], id="other words"),
        pytest.param([*RANGES["dots"], "[stage1] mb=3 has 0 targets -> skip"], id="an earlier one"),
        pytest.param(RANGES["dots"], id="still at work"),
        pytest.param([*RANGES["dots"][:2], "[stage1] grad norm 0-5"], id="no transfers"),
    ],
)
def test_stage_that_returned_before_nothing_is_not_named(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines[:1], WAITS_FOR["dots"], *lines[1:])

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_stages_of_more_ranks_than_stages_name_nobody(tmp_path: Path) -> None:
    lines = [*RANGES["dots"], WAITS_FOR["dots"], f"[stage1] {RETURNS['before']}"]
    report = say(tmp_path, *lines, GIVES_UP.replace("rank0", "rank5"))

    assert not {rank for one in report.findings for rank in one.culprits.ranks}
