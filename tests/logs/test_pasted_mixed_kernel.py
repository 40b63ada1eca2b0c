"""Lines of ranks below those of the kernel, local ranks that leave, and pauses of programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

XIDS = [
    "[2201843.118820] NVRM: Xid (PCI:0000:9b:00): 63, pid='<unknown>', Row Remapper",
    "[2201843.120011] NVRM: Xid (PCI:0000:9b:00): 94, pid=70114, name=python3, Contained: SM (0x1)",
    "[2201843.120377] NVRM: Xid (PCI:0000:9b:00): 94, pid=70114, name=python3, Ch 00000009",
]
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize("prefix", ["[rank5]: ", "[1,5]<stderr>:[rank5]: "])
@pytest.mark.parametrize("more", [[], ["[2201844.5] nvidia-uvm: a line more"] * 3])
def test_rank_below_lines_of_the_kernel_is_read(
    tmp_path: Path, prefix: str, more: list[str]
) -> None:
    finding = first_of(say(tmp_path, *XIDS, *more, prefix + ECC))

    assert (finding.code, finding.culprits.ranks) == ("C208", [5])


@pytest.mark.parametrize("other", ["EDAC MC0: 1 CE on rank 5", "md: rank 5 of the array"])
def test_ranks_of_the_kernel_are_none_of_the_job(tmp_path: Path, other: str) -> None:
    report = say(tmp_path, *XIDS, f"[2201850.1] {other}")

    assert not any(one.culprits.ranks for one in report.findings)


WAIT = (
    "[rank0]:[E1130 23:05:19.660217731 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=26553, OpType=ALLREDUCE, NumelIn=65, "
    "NumelOut=65, Timeout(ms)=600000) ran for 600080 milliseconds before timing out."
)
SEATS = ["[gpu{0}] ", "[cuda{0}] ", "[default{0}]:"]
LEAVES = ["epoch 1 finished: 3318 batches, destroying process group", "end of training loop"]


def step(seat: str, local: int, number: int) -> str:
    return f"{seat.format(local)}epoch 1 step {number} loss 0.2177"


@pytest.mark.parametrize("seat", SEATS)
@pytest.mark.parametrize("leaves", LEAVES)
def test_local_rank_that_leaves_while_another_goes_on(
    tmp_path: Path, seat: str, leaves: str
) -> None:
    lines = [step(seat, 0, 8), step(seat, 1, 8), seat.format(1) + leaves, step(seat, 0, 9)]
    finding = first_of(say(tmp_path, *lines, WAIT))

    assert (finding.code, finding.culprits.ranks) == ("H103", [1])


@pytest.mark.parametrize("seat", SEATS)
@pytest.mark.parametrize("leaves", LEAVES)
def test_local_rank_that_goes_on_itself_has_not_left(
    tmp_path: Path, seat: str, leaves: str
) -> None:
    lines = [step(seat, 0, 8), seat.format(1) + leaves, step(seat, 1, 9), step(seat, 0, 9)]

    assert first_of(say(tmp_path, *lines, WAIT)).code != "H103"


PAUSES = [
    "step=881 dt=1.36 rank=0   slowest: rank 22 (gc gen2 0.64s, 5.1M objects)",
    "[rank3] gc pause 0.64s",
    "[rank3] GC generation 2 took 640 ms",
    "[rank3] gc: gen 2 collection took 0.64 s",
    "[rank  93] gc callback: gen=2 took 0.64s collected=0",
]


@pytest.mark.parametrize("line", PAUSES)
def test_pauses_of_the_garbage_collector_in_words_of_scripts(tmp_path: Path, line: str) -> None:
    report = say(tmp_path, line, "step=882 dt=0.70 rank=0", line.replace("64", "61"))

    assert [one.code for one in report.findings][:1] == ["S307"]
    short = line.replace("0.64", "0.0064").replace("640 ms", "6 ms")
    assert "S307" not in {
        one.code for one in say(tmp_path, short, short.replace("64", "61")).findings
    }


@pytest.mark.parametrize("line", ["gc gen2 threshold 0.64", "gc pause disabled for 640 steps"])
def test_settings_of_the_garbage_collector_are_no_pauses(tmp_path: Path, line: str) -> None:
    assert "S307" not in {one.code for one in say(tmp_path, line, line + " ").findings}


def frames(*notes: str) -> list[str]:
    """Write a stack in a send of each of some processes, with a comment at its second frame."""
    lines = []
    for at, note in enumerate(notes):
        lines += [
            f'Thread {40101 + at} (idle): "MainThread"',
            "    send (torch/distributed/distributed_c10d.py:2436)",
            f"    pass_kv (ring.py:38)      {note}",
            "    forward (ring.py:71)",
        ]
    return lines


@pytest.mark.parametrize("note", ["# rank {0}, dst={1}", "<- rank {0}", "// rank={0}; to {1}"])
def test_comment_at_a_frame_tells_whose_stack_it_is(tmp_path: Path, note: str) -> None:
    told = [note.format(rank, (rank + 1) % 3) for rank in (2, 0, 1)]
    finding = first_of(say(tmp_path, *frames(*told)))

    assert (finding.code, finding.culprits.ranks) == ("H109", [0, 1, 2])


@pytest.mark.parametrize("note", ["# rank 2 never comes here", "# waits for rank 2", "# dst=2"])
def test_comment_about_another_rank_is_not_whose_stack_it_is(tmp_path: Path, note: str) -> None:
    report = say(tmp_path, *frames(note, "# the same", "# the same"))

    assert not any(2 in one.culprits.ranks for one in report.findings)


def locals_of(name: str, ranks: tuple[int, int], function: str = "exchange") -> list[str]:
    """Write what `py-spy dump --locals` shows of two processes that receive from each other."""
    lines = []
    for at, rank in enumerate(ranks):
        lines += [
            f"$ py-spy dump --locals --pid {9401 + at}",
            f'Thread {9401 + at} (idle): "MainThread"',
            "    recv (torch/distributed/distributed_c10d.py:2424)",
            "        Arguments:",
            f"            src: {1 - rank}",
            f"    {function} (halo.py:33)",
            "        Locals:",
            f"            {name}: {rank}",
            "    main (halo.py:71)",
        ]
    return lines


@pytest.mark.parametrize("name", ["rank", "global_rank"])
@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_variable_that_holds_the_rank(tmp_path: Path, name: str, ranks: tuple[int, int]) -> None:
    finding = first_of(say(tmp_path, *locals_of(name, ranks)))

    assert (finding.code, finding.culprits.ranks) == ("H109", [0, 1])


@pytest.mark.parametrize(
    "lines",
    [
        locals_of("peer_rank", (0, 1)),
        locals_of("local_rank", (0, 1)),
        locals_of("rank", (0, 0)),
        locals_of("rank", (0, 1), "recv_from"),
        locals_of("rank", (0, 1))[:9],
        [*locals_of("rank", (0, 1)), *locals_of("other", (2, 3))[:9]],
    ],
    ids=["peer", "local", "the same", "of a peer", "one process", "not all"],
)
def test_variable_that_may_hold_another_rank(tmp_path: Path, lines: list[str]) -> None:
    assert not any(one.culprits.ranks for one in say(tmp_path, *lines).findings)


@pytest.mark.parametrize(
    "below", [[], ["Failed to initialize NVML: Driver/library version mismatch"]]
)
@pytest.mark.parametrize("prefix", ["", "[rank4]: "])
def test_process_without_a_device_is_wrongly_configured(
    tmp_path: Path, below: list[str], prefix: str
) -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 12, in <module>',
        '    dist.init_process_group("nccl")',
        '  File "/env/torch/distributed/distributed_c10d.py", line 1837, in _new_group_helper',
        "    backend_class = ProcessGroupNCCL(",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    ]
    finding = first_of(say(tmp_path, *(prefix + line for line in raised), *below))

    assert finding.code == "C210"


@pytest.mark.parametrize(
    "prefix", ["[rank{0:>4}]: ", "rank {0:>3} | ", "[Rank={0:>3}] ", "rank {0:>3}: "]
)
def test_numbers_of_ranks_may_be_padded(tmp_path: Path, prefix: str) -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 12, in step',
        "    x = batch['labels']",
        "KeyError: 'labels'",
    ]
    lines = [prefix.format(rank) + "step 9 loss 2.1" for rank in (7, 11)]
    finding = first_of(say(tmp_path, *lines, *(prefix.format(11) + line for line in raised)))

    assert (finding.code, finding.culprits.ranks) == ("C204", [11])
