"""Ranks that tools show behind the others, and that left the loop by their words or batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT

from whystuck.evidence.finding import Report

RAS = """\
NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  MISMATCH

Warnings
========

#0-0 (6f1a90c2d7e3b518) MISMATCH
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 21605
"""
OWNER = "GPU 3 managed by process 118204 on node 10.60.1.11"
BEHIND = {
    "one rank": f"{RAS}  1 rank has launched up to operation 21600\n  Rank 3 -- {OWNER}\n",
    "that rank": f"{RAS}  Rank 3 has launched up to operation 21600 -- {OWNER}\n",
    "torchfrtrace": "Not all ranks joining collective, sequence number: 9602\n"
    "missing ranks: {3}\nexpected ranks: {0, 1, 2, 3, 4, 5, 6, 7}\n",
}
SAID = {
    "end": "11:40:26 rank=3 end of training loop after 10 epochs, waiting for uploads",
    "over": "[rank3]: training loop finished, 4319 batches",
    "left": "[rank3]: INFO left the training loop, joining writers",
    "broke": "rank 3: broke out of the epoch loop",
    "exhausted": "[rank 3] data exhausted after 1190 batches",
    "named": "Rank 3 reached the end of the train loop",
    "training is over": "[rank3] finished training, leaving",
    "training is over, with groups": "[rank3]: INFO Training done, destroy_process_group() next",
    "training is over, without data": "[rank3] no more batches: training is done.",
}
COUNTS = {
    "sorted": "09:55:02 rank={0} epoch 9: {1} batches",
    "torchrun": "[rank{0}]: epoch 9 | {1} batches",
    "loader": "[rank{0}]: len(train_loader) = {1}",
    "named": "rank {0} num_batches: {1}",
}


def judge(report: Report) -> tuple[str, list[int]]:
    return first_of(report).name, first_of(report).culprits.ranks


def list_named(report: Report) -> set[tuple[str, int]]:
    return {(one.name, rank) for one in report.findings for rank in one.culprits.ranks}


def count(form: str, counts: list[int]) -> list[str]:
    return [COUNTS[form].format(rank, one) for rank, one in enumerate(counts)]


FEWER = [4320, 4320, 4320, 4319, 4320, 4320, 4320, 4320]


@pytest.mark.parametrize("tool", BEHIND)
@pytest.mark.parametrize("words", SAID)
def test_rank_that_is_behind_and_says_that_it_left_did_so(
    tmp_path: Path, tool: str, words: str
) -> None:
    report = say(tmp_path, "$ ncclras -v", BEHIND[tool], "", SAID[words])

    assert judge(report) == ("left-early", [3])
    assert tool == "torchfrtrace" or first_of(report).victims.ranks == "0-2,4-7"
    assert not {name for name, _ in list_named(report)} - {"left-early"}


@pytest.mark.parametrize("form", COUNTS)
@pytest.mark.parametrize("tool", BEHIND)
def test_rank_that_is_behind_and_had_fewer_batches_left(
    tmp_path: Path, tool: str, form: str
) -> None:
    report = say(tmp_path, BEHIND[tool], "", *count(form, FEWER))

    assert judge(report) == ("left-early", [3])


def test_counts_of_each_epoch_are_those_of_the_last_one(tmp_path: Path) -> None:
    first = [line.replace("epoch 9", "epoch 8") for line in count("sorted", FEWER[::-1])]
    report = say(tmp_path, BEHIND["one rank"], *first, *count("sorted", FEWER))

    assert judge(report) == ("left-early", [3])


def test_stack_of_the_rank_tells_where_it_is(tmp_path: Path) -> None:
    stack = [
        "$ py-spy dump --pid 118204",
        "Process 118204: python asr_train.py",
        'Thread 118204 (idle): "MainThread"',
        "    wait (threading.py:355)",
        "    _finish_uploads (asr_train.py:390)",
        "    main (asr_train.py:352)",
        "$ py-spy dump --pid 118203",
        "Process 118203: python asr_train.py",
        'Thread 118203 (active): "MainThread"',
        "    backward (torch/_tensor.py:648)",
        "    train_epoch (asr_train.py:288)",
        "    main (asr_train.py:337)",
    ]
    finding = first_of(say(tmp_path, BEHIND["one rank"], "", *stack, "", SAID["end"]))

    assert (finding.name, finding.culprits.ranks) == ("left-early", [3])
    assert finding.where[0].line == 390


LEFT_OPEN = {
    "all say it": [SAID["left"].replace("3", str(rank)) for rank in range(8)],
    "another one says it": [SAID["left"].replace("3", "5")],
    "it says something else": ["[rank3]: INFO training loop begins", "[rank3]: end of the set"],
    "all have as many": count("sorted", [4320] * 8),
    "it has more": count("sorted", [4320, 4320, 4320, 4321, *[4320] * 4]),
    "others have fewer": count("sorted", [4320, 4319, *[4320] * 6]),
    "a total": ["[rank3]: 10 batches in total, all ranks"],
    "it may write a summary": ["[rank3]: INFO training finished."],
}


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_rank_that_is_only_behind_did_not_leave(tmp_path: Path, name: str) -> None:
    report = say(tmp_path, BEHIND["one rank"], "", *LEFT_OPEN[name])

    assert "left-early" not in {one.name for one in report.findings}
    assert list_named(report) <= {("rank-never-joined", 3)}


@pytest.mark.parametrize("words", [name for name in SAID if name.startswith("training")])
def test_rank_that_fails_to_pass_a_barrier_after_its_training_left(
    tmp_path: Path, words: str
) -> None:
    late = "[rank0]: RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 60000 ms"
    other = late.replace("Rank 3", "Rank 2")

    assert judge(say(tmp_path, SAID[words], late)) == ("left-early", [3])
    assert judge(say(tmp_path, SAID[words], other)) == ("rank-never-joined", [2])


def test_words_alone_tell_of_no_wait(tmp_path: Path) -> None:
    report = say(tmp_path, SAID["left"], *count("sorted", FEWER))

    assert not list_named(report)


BARRIER = "[rank0]: RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 600000 ms"
TAGS = ["[1,{0}]<stdout>:", "[rank{0}]: ", "rank {0}: "]


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("done", ["epoch 4 done, 811 batches, validating", "val 10/40", ""])
def test_shorter_loader_tells_that_a_rank_was_done_before_the_others(
    tmp_path: Path, done: str, tag: str
) -> None:
    sizes = [812, 812, 811, 812]
    loaders = [f"{tag.format(rank)}len(loader)={size}" for rank, size in enumerate(sizes)]
    report = say(tmp_path, *loaders, f"{tag.format(2)}{done}", BARRIER)

    assert judge(report) == ("left-early", [2])


@pytest.mark.parametrize(
    "lines",
    [
        [f"[rank{rank}]: len(loader)=812" for rank in range(4)],
        [f"[rank{rank}]: len(loader)={812 - (rank == 1)}" for rank in range(4)],
        [
            *(f"[rank{rank}]: len(train_loader)=812" for rank in range(4)),
            "[rank2]: len(val_loader)=40",
        ],
        [
            *(f"[rank{rank}]: epoch 0 done, {812 - (rank == 2)} batches" for rank in range(4)),
            *(f"[rank{rank}]: epoch 1 done, 812 batches" for rank in range(4)),
        ],
    ],
    ids=["same", "another rank", "another loader", "an epoch before"],
)
def test_loaders_of_the_same_length_tell_of_no_early_end(tmp_path: Path, lines: list[str]) -> None:
    assert judge(say(tmp_path, *lines, BARRIER)) == ("rank-never-joined", [2])


@pytest.mark.parametrize("form", ["len(loader)={1}", "dataloader length: {1}", "num_batches={1}"])
def test_rank_with_fewer_batches_left_where_all_others_gave_up(tmp_path: Path, form: str) -> None:
    sizes = [f"[rank{rank}]: {form.format(rank, 812 - (rank == 2))}" for rank in range(4)]
    waits = [WAIT.format(rank) for rank in (0, 1, 3)]

    assert judge(say(tmp_path, *sizes, *waits)) == ("left-early", [2])


@pytest.mark.parametrize("waiting", [(0, 1), (0, 1, 2, 3), (2, 3)])
def test_rank_with_fewer_batches_is_not_named_where_another_one_is_silent(
    tmp_path: Path, waiting: tuple[int, ...]
) -> None:
    sizes = [f"[rank{rank}]: len(loader)={812 - (rank == 2)}" for rank in range(4)]
    report = say(tmp_path, *sizes, *(WAIT.format(rank) for rank in waiting))

    assert not list_named(report)


DONE = {
    "epoch": "[rank {0}] epoch {2} finished, {1} batches, val mAP 0.311",
    "loop": "rank={0} epoch {2}: done after {1} batches, loss 0.41",
    "torchrun": "[rank{0}]: {1} batches completed (epoch {2}), writing metrics",
}
AT = {
    "share": "[rank {0}] batch {1}/812",
    "epoch": "rank={0} epoch {2} batch {1} of 812 loss 0.4",
    "bracket": "[rank{0}]: Epoch: [{2}] batch [{1}/812] loss 0.4",
}


def pass_by(
    done: str, at: str, *, count: int = 810, batch: int = 811, epochs: tuple[int, int] = (0, 0)
) -> list[str]:
    """Write that rank 2 is done, and at which batch all others are, which then give up."""
    own = DONE[done].format(2, count, epochs[0])
    others = [AT[at].format(rank, batch, epochs[1]) for rank in (0, 1, 3)]
    return [own, *others, *(WAIT.format(rank) for rank in (0, 1, 3))]


@pytest.mark.parametrize("done", DONE)
@pytest.mark.parametrize("at", AT)
def test_rank_that_is_done_where_all_others_are_further_left(
    tmp_path: Path, done: str, at: str
) -> None:
    assert judge(say(tmp_path, *pass_by(done, at))) == ("left-early", [2])


def test_rank_that_is_done_where_lines_are_mixed_left(tmp_path: Path) -> None:
    lines = pass_by("loop", "share")
    earlier = [AT["share"].format(rank, at, 0) for at in (809, 810) for rank in range(4)]

    assert judge(say(tmp_path, *earlier, *lines)) == ("left-early", [2])
    assert judge(say(tmp_path, *earlier, *lines[1:4], lines[0], *lines[4:]))[1] == [2]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(pass_by("epoch", "share", batch=810), id="as far"),
        pytest.param(pass_by("epoch", "share", batch=3), id="in the next epoch"),
        pytest.param(pass_by("epoch", "epoch", epochs=(0, 1)), id="of another epoch"),
        pytest.param(
            [
                pass_by("loop", "share")[0],
                AT["share"].format(2, 4, 1),
                *pass_by("loop", "share")[1:],
            ],
            id="goes on",
        ),
        pytest.param([*pass_by("loop", "share")[:3], *pass_by("loop", "share")[4:]], id="unseen"),
        pytest.param(pass_by("loop", "share")[:-1], id="one does not wait"),
        pytest.param(
            ["[rank2]: prefetched 40 batches, done", *pass_by("loop", "share")[1:]], id="x"
        ),
        pytest.param(["[rank2]: val done, 40 batches", *pass_by("loop", "share")[1:]], id="val"),
        pytest.param(
            ["[rank2]: validation finished, 40 batches", *pass_by("loop", "share")[1:]], id="valid"
        ),
        pytest.param(["[rank2]: skipped 40 batches, done", *pass_by("loop", "share")[1:]], id="s"),
        pytest.param(["[rank2]: queue has 40 batches", *pass_by("loop", "share")[1:]], id="queue"),
    ],
)
def test_rank_that_others_did_not_pass_left_no_loop(tmp_path: Path, lines: list[str]) -> None:
    assert judge(say(tmp_path, *lines))[0] != "left-early"


SHORTER = {
    "share": "[rank {0}] epoch 2 batch {1}/{2}",
    "of": "rank={0} epoch 2 batch {1} of {2} loss 0.4",
    "bracket": "[rank{0}]: Epoch: [2] batch [{1}/{2}] loss 0.4",
}
MISSES = [
    "$ torchfrtrace --prefix nccl_trace_rank_ /scratch/fr",
    "Not all ranks joining collective, sequence number: 4410",
    "group info: 0:default_pg",
    "collective: nccl:all_reduce",
    "missing ranks: {2}",
    "collective state: scheduled",
]


def end(form: str, last: int = 810, at: int = 810, *, others: int = 810) -> list[str]:
    """Write where ranks are in an epoch of 811 batches, of which rank 2 has fewer."""
    rows = [SHORTER[form].format(rank, others, 811) for rank in (0, 1, 3)]
    return [SHORTER[form].format(2, at, last), *rows]


@pytest.mark.parametrize("form", SHORTER)
@pytest.mark.parametrize("told", [MISSES, [WAIT.format(rank) for rank in (0, 1, 3)]])
def test_rank_at_the_end_of_a_shorter_epoch_left(
    tmp_path: Path, told: list[str], form: str
) -> None:
    assert judge(say(tmp_path, *end(form), *told)) == ("left-early", [2])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*end("share", last=811), *MISSES], id="as long"),
        pytest.param([*end("share", at=640), *MISSES], id="not at its end"),
        pytest.param([*end("share", others=500), *MISSES], id="others are behind"),
        pytest.param([*end("share", last=20, at=20), *MISSES], id="other loop"),
        pytest.param(
            [end("share")[0].replace("epoch", "val epoch"), *end("share")[1:], *MISSES], id="val"
        ),
        pytest.param(
            [end("share")[0].replace("epoch 2", "epoch 3"), *end("share")[1:], *MISSES], id="next"
        ),
        pytest.param([*end("share")[:2], *MISSES], id="two ranks"),
        pytest.param(
            [*end("share"), *(line.replace("{2}", "{3}") for line in MISSES)], id="other misses"
        ),
    ],
)
def test_rank_whose_epoch_is_not_known_to_be_shorter_left_no_loop(
    tmp_path: Path, lines: list[str]
) -> None:
    assert judge(say(tmp_path, *lines))[0] != "left-early"
