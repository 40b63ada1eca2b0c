"""Causes that are of all ranks, of a host, or of nobody, and one that differs from all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT, WAITS
from tests.logs.test_who_is_it import blamed, tell

from whystuck.evidence.finding import Verdict

# --------------------------------------------------------- checkpoints that fail on several ranks

COLLECTED = [
    "[rank{0}]: Traceback (most recent call last):",
    '[rank{0}]:   File "/proj/run.py", line 522, in save',
    '[rank{0}]:     dcp.save({{"app": state}}, checkpoint_id=path)',
    '[rank{0}]:   File "/venv/torch/distributed/checkpoint/utils.py", line 240, in all_reduce',
    "[rank{0}]:     raise final_result",
    (
        "[rank{0}]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
        "ranks:dict_keys([{1}])"
    ),
]
OWN = [
    "[rank{0}]: Traceback (most recent call last): (RANK {1})",
    '[rank{0}]:   File "/venv/torch/distributed/checkpoint/filesystem.py", line 412, in _write',
    "[rank{0}]:     stream.flush()",
    "[rank{0}]: {2}",
]
ERRORS = [
    "OSError: [Errno 122] Disk quota exceeded",
    "OSError: [Errno 28] No space left on device",
    "PermissionError: [Errno 13] Permission denied: '/ckpt/__0_0.distcp'",
    "OSError: [Errno 5] Input/output error",
]


def fill(lines: list[str], *words: object) -> list[str]:
    return [line.format(*words) for line in lines]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("shown", [1, 3, 8])
def test_checkpoint_that_fails_on_all_ranks_is_nobodys(
    tmp_path: Path, error: str, shown: int
) -> None:
    ranks = ", ".join(map(str, range(8)))
    own = [line for rank in range(shown) for line in fill(OWN, 0, rank, error)]

    assert not blamed(tmp_path, *fill(COLLECTED, 0, ranks), *own, "    ... (more like this)")


@pytest.mark.parametrize("printers", [(0,), (0, 1, 2, 3)])
def test_checkpoint_that_fails_on_one_rank_is_that_ones(
    tmp_path: Path, printers: tuple[int, ...]
) -> None:
    lines = [
        line
        for rank in printers
        for line in (*fill(COLLECTED, rank, 3), *fill(OWN, rank, 3, "KeyError: 'bias'"))
    ]

    assert blamed(tmp_path, *lines, "[rank7]: step 1 loss 2.0") == {3}


# ------------------------------------------------------------------------------- a host of several

STALE = "{0}: OSError: [Errno {1}] {2}: '/mnt/data/shard.0441{0}.mds'"
TRACE = [
    "{0}: Traceback (most recent call last):",
    '{0}:   File "/home/ml/loader.py", line 212, in _read',
    '{0}:     with open(path, "rb") as f:',
]
SRUN = "srun: error: gpu-c03: tasks {0}: Exited with exit code 1"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (116, "Stale file handle"),
        (107, "Transport endpoint is not connected"),
        (5, "Input/output error"),
        (121, "Remote I/O error"),
    ],
)
def test_ranks_of_one_host_that_lose_a_mount_name_the_host(
    tmp_path: Path, number: int, text: str
) -> None:
    stale = [STALE.format(rank, number, text) for rank in (16, 19, 22, 17, 23)]
    waits = [f"{rank}: {WAIT.format(rank)}" for rank in (2, 11, 30)]

    told = tell(tmp_path, *fill(TRACE, 16), *stale, SRUN.format("16-17,19,22-23"), *waits)

    assert told == ("C204", [16, 17, 19, 22, 23], ["gpu-c03"])


@pytest.mark.parametrize("others", [(2, 18, 30), (14, 15, 24), ()])
def test_ranks_that_may_be_of_several_hosts_name_none(
    tmp_path: Path, others: tuple[int, ...]
) -> None:
    stale = [STALE.format(rank, 116, "Stale file handle") for rank in (16, 19, 22, 17, 23)]
    waits = [f"{rank}: {WAIT.format(rank)}" for rank in others]

    code, _, nodes = tell(tmp_path, *stale, SRUN.format("16-17,19,22-23"), *waits)

    assert (code in {"C204", "C205"}, nodes) == (True, [])


# --------------------------------------------------------------------------- RAS, asked two times

RAS = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different {3} operation counts
  {0} ranks have launched up to operation {1}
  Rank 4 has launched up to operation {2} -- GPU 4 managed by process 483076 on node 10.30.0.10
"""


@pytest.mark.parametrize("between", ["", "(30 s later)", "$ ncclras", "again, a minute later:\n"])
@pytest.mark.parametrize("op", ["AllReduce", "AllGather"])
def test_ranks_that_went_on_between_two_answers_are_not_missing(
    tmp_path: Path, between: str, op: str
) -> None:
    first, second = RAS.format(31, 118420, 118419, op), RAS.format(31, 120113, 120112, op)

    report = say(tmp_path, first, between, second, "step 3702 | loss 2.869 | 1.01 s/step")

    assert (report.verdict, report.findings) == (Verdict.INCONCLUSIVE, [])


@pytest.mark.parametrize(("most", "late"), [(118420, 118419), (120113, 118419), (118425, 118420)])
def test_rank_that_stays_behind_is_named(tmp_path: Path, most: int, late: int) -> None:
    first = RAS.format(31, 118420, 118419, "AllReduce")

    assert blamed(tmp_path, first, "", RAS.format(31, most, late, "AllReduce")) == {4}


# ---------------------------------------------------------------------------- one of another size

FIRST = WAIT.replace("18442", "{1}").replace("NumelIn=4096, NumelOut=4096", "NumelIn={2}")
FIRST = FIRST.replace("NumelIn={2}", "NumelIn={2}, NumelOut={2}")


def sized(*sizes: int, seq: int = 1) -> list[str]:
    return [FIRST.format(rank, seq, size) for rank, size in enumerate(sizes)]


@pytest.mark.parametrize(
    "sizes",
    [
        (131072000, 131084288, 131072000, 131072000),
        (4096, 4096, 4096, 4095),
        (4096, 4096, 4608, 4096, 4096, 4096),
        (7000, 4096, 4096, 4096, 4096, 4096, 4096, 4096),
    ],
)
@pytest.mark.parametrize("seq", [1, 3])
def test_first_call_of_another_size_is_of_the_odd_rank(
    tmp_path: Path, sizes: tuple[int, ...], seq: int
) -> None:
    odd = next(rank for rank, size in enumerate(sizes) if sizes.count(size) == 1)

    assert tell(tmp_path, *sized(*sizes, seq=seq))[:2] == ("H106", [odd])


@pytest.mark.parametrize(
    "sizes",
    [
        # three, two and two, another op's size, and two odd ones
        (4096, 4096, 4608),
        (4096, 4608, 4096, 4608),
        (4096, 1, 4096, 4096),
        (4096, 4608, 4096, 4600, 4096, 4096),
    ],
)
def test_sizes_that_may_be_of_several_groups_name_nobody(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    assert not blamed(tmp_path, *sized(*sizes))


def test_members_of_groups_are_not_compared_as_one(tmp_path: Path) -> None:
    lines = sized(4096, 4096, 4608, 4096)
    lines[2] = lines[2].replace("[Rank 2]", "[Rank 0]")

    assert not blamed(tmp_path, *lines)


# ---------------------------------------------------------- loggers' colours, and round brackets

TOLD = """\
({0}) 2025-04-17 01:12:44.310 | INFO     | train:loop:155 - step 5210 loss 1.774
({0}) 2025-04-17 01:12:58.871 | ERROR    | __main__:<module>:240 - An error has been caught
({0}) [rank9]: Traceback (most recent call last):
({0}) [rank9]:   File "/app/data/jsonl.py", line 58, in __next__
({0}) [rank9]:     rec = json.loads(line)
({0}) [rank9]: json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
({0}) rank 9 is kept for a look
({1}) [rank0]:[E417 01:42:59.220 ProcessGroupNCCL.cpp:629] [Rank 0] {2}
({1}) [rank3]:[E417 01:42:59.231 ProcessGroupNCCL.cpp:629] [Rank 3] {2}
({0}) [rank8]:[E417 01:42:59.235 ProcessGroupNCCL.cpp:629] [Rank 8] {2}
"""
TIMEOUT = WAITS[0].partition("[Rank 1] ")[2]


PAIRS = [("node1", "node0"), ("gpu-b2", "gpu-b1"), ("node-b", "node-a")]


@pytest.mark.parametrize(("one", "two"), PAIRS)
@pytest.mark.parametrize("colour", ["", "\x1b[36m"])
def test_host_in_round_brackets_hides_no_rank(
    tmp_path: Path, one: str, two: str, colour: str
) -> None:
    text = TOLD.format(one, two, TIMEOUT)
    if colour:
        text = text.replace(f"({one}) ", f"{colour}({one})\x1b[0m ")
        text = text.replace(f"({two}) ", f"{colour}({two})\x1b[0m ")

    assert tell(tmp_path, text) == ("C204", [9], [one])


@pytest.mark.parametrize("word", ["step-12", "rank-3", "epoch_4", "x"])
def test_words_in_round_brackets_that_count_are_no_hosts(tmp_path: Path, word: str) -> None:
    lines = [f"({word}) loss 1.5", f"({word}) [rank9]: ValueError: no", f"({word}) loss 1.4"]

    assert not [node for one in say(tmp_path, *lines).findings for node in one.culprits.nodes]


# --------------------------------------------------------------------------- a rank that compiles

COMPILING = """
Process 4711: /opt/venv/bin/python -u train.py
Python v3.12.8 (/usr/bin/python3.12)

Thread 4711 (active): "MainThread"
    {0}
    compile_fx_inner (torch/_inductor/compile_fx.py:708)
    _compile (torch/_dynamo/convert_frame.py:1111)
    train_step (/ws/train.py:260)
    <module> (/ws/train.py:300)
"""
INNER = [
    "benchmark_gpu (torch/_inductor/runtime/benchmarking.py:231)",
    "make_ttir (triton/backends/nvidia/compiler.py:220)",
    "run (torch/_inductor/graph.py:860)",
    "wait (concurrent/futures/_base.py:451)",
]


@pytest.mark.parametrize("inner", INNER)
def test_rank_that_compiles_while_others_time_out_is_likely(tmp_path: Path, inner: str) -> None:
    report = say(tmp_path, "rank 0 is pid 4711", *WAITS, *COMPILING.format(inner).splitlines())

    finding = first_of(report)
    assert (finding.code, finding.culprits.ranks, report.verdict) == ("H119", [0], Verdict.STUCK)


@pytest.mark.parametrize("owner", ["pid 4711 is somewhere", "rank 2 is pid 4711"])
def test_process_that_compiles_is_nobody_where_no_other_rank_waits(
    tmp_path: Path, owner: str
) -> None:
    report = say(tmp_path, owner, *WAITS, *COMPILING.format(INNER[0]).splitlines())

    assert not [
        one for one in report.findings if one.code == "H119" and one.confidence != "possible"
    ]
