"""How programs mark whose a line is, and what is compared over ranks by such marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Finding, Verdict

WAIT = (
    "[E808 01:40:23.40{0} ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=23911, OpType=ALLREDUCE, NumelIn={1}, NumelOut={1}, "
    "Timeout(ms)=1800000) ran for 1800062 milliseconds before timing out."
)
LEAVES = "loader exhausted after 5213 batches, epoch 0 finished"


def show(finding: Finding) -> tuple[str, list[int], list[str]]:
    return finding.code, finding.culprits.ranks, finding.culprits.nodes


@pytest.mark.parametrize(
    "mark",
    ["[r{0}]", "[rk{0}]", "(rank {0})", "<RANK={0}>", "[rank_{0}]:", "rank={0}", "rank:{0},"],
)
def test_mark_of_a_rank_tells_whose_a_line_is(tmp_path: Path, mark: str) -> None:
    steps = [f"{mark.format(rank)} epoch 0 step 52{rank}0" for rank in (0, 2, 1)]
    lines = [*steps, f"{mark.format(2)} {LEAVES}"]
    waits = [f"{mark.format(rank)} {WAIT.format(rank, 7382016)}" for rank in (1, 0)]

    assert show(first_of(say(tmp_path, *lines, *waits)))[:2] == ("H103", [2])


def test_collector_of_numbers_before_the_hook_of_torch(tmp_path: Path) -> None:
    lines = [
        f"[{rank}]:[rank{rank}]: {text}"
        for rank, text in [
            (0, "Traceback (most recent call last):"),
            (2, "Traceback (most recent call last):"),
            (2, '  File "/job/loss.py", line 22, in loss'),
            (
                2,
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8 GiB. GPU 2 has",
            ),
            (0, '  File "/job/train.py", line 9, in step'),
            (0, "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0."),
        ]
    ]
    assert show(first_of(say(tmp_path, *lines)))[:2] == ("C206", [2])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([f"[R{n}] score 0.9{n}" for n in (2, 1, 3)], id="a metric"),
        pytest.param([f"rank={n} of 8 is up" for n in range(8)], id="a list of ranks"),
    ],
)
def test_what_only_looks_like_a_mark_blames_nobody(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines, WAIT.format(1, 8))

    assert not [item for item in report.findings if item.culprits.ranks]


# ------------------------------------------------------------------ a rank that caught its error

CAUGHT = "WARNING loop.py:94 {0} bad batch: {1}('The size of tensor a must match tensor b')"


@pytest.mark.parametrize(
    ("verb", "error"), [("skipping", "RuntimeError"), ("ignored", "ValueError")]
)
def test_rank_that_caught_once_and_waits_in_another_op_skipped(
    tmp_path: Path, verb: str, error: str
) -> None:
    caught = f"[rank2]: {CAUGHT.format(verb, error)}"
    waits = [f"[rank{rank}]: {WAIT.format(rank, 1 if rank == 2 else 64)}" for rank in range(4)]
    assert show(first_of(say(tmp_path, caught, *waits)))[:2] == ("H127", [2])

    # One that waits with the others got over it.
    same = [f"[rank{rank}]: {WAIT.format(rank, 64)}" for rank in range(4)]
    report = say(tmp_path, caught, *same)
    assert not [item for item in report.findings if item.culprits.ranks]


# ------------------------------------------------------------------------------- values of ranks


@pytest.mark.parametrize(
    "cell", ["r{0} loss {1} |", "rank {0}: {1},", "rank{0}={1}", "R{0} gnorm={1} ;"]
)
@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_first_line_in_which_values_differ_names_the_rank(
    tmp_path: Path, cell: str, bad: str
) -> None:
    def write(step: int, *odd: int) -> str:
        cells = (cell.format(rank, bad if rank in odd else "2.2183") for rank in range(4))
        return f"step {step} | {' '.join(cells)} global loss: {bad if odd else 2.2}"

    steps = [write(8), write(9, 3), write(10, 0, 1, 2, 3), write(11, 0, 1, 2, 3)]
    raised = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "train.py", line 166, in <module>',
        "[rank0]: AssertionError: loss diverged at 11",
    ]

    finding = first_of(say(tmp_path, *steps, *raised))
    assert show(finding)[:2] == ("V502", [3])
    assert finding.victims.ranks == "0-2"

    report = say(tmp_path, *steps[:1], steps[2], steps[3])
    assert not [item for item in report.findings if item.culprits.ranks]


def test_check_that_raised_above_the_values_is_no_check_of_them(tmp_path: Path) -> None:
    raised = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "train.py", line 7, in load',
        "[rank1]: ValueError: scale must be finite",
    ]
    values = ["[rank0]: step 1 loss: nan", "[rank0]: step 2 loss: nan"]

    assert show(first_of(say(tmp_path, *raised, *values)))[:2] == ("C204", [1])


# --------------------------------------------------------------------- what was tried again, told


@pytest.mark.parametrize(
    "line",
    [
        "[rank6] WARNING s3: Put attempt 1 failed: Connection reset by peer, backing off 0.8 s",
        "my colleague complains because of 'Connection reset by peer', I doubt it",
        'he told me of "NCCL timed out" errors of rank 6',
    ],
)
def test_message_that_somebody_tells_of_or_got_over_is_no_failure(
    tmp_path: Path, line: str
) -> None:
    report = say(tmp_path, line, "[rank0] step 2010 | loss 2.77", "[rank0] step 2020 | loss 2.76")

    assert report.verdict in {Verdict.INCONCLUSIVE, Verdict.HEALTHY}


def test_same_message_of_a_rank_is_one(tmp_path: Path) -> None:
    line = "[rank6]: RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection reset by peer"

    assert first_of(say(tmp_path, line)).code == "C209"


# -------------------------------------------------------------------------- devices that are told


@pytest.mark.parametrize(
    "felt",
    [
        (
            "[rank5]: :0:rocdevice.cpp :3020: 81d us: Callback: Queue 0x7f aborting with error : "
            "HSA_STATUS_ERROR_MEMORY_FAULT: Agent attempted to access an inaccessible address."
        ),
        "[rank5]: Memory access fault by GPU node-7 (Agent handle: 0x7f1) on address 0x7f2.",
    ],
)
def test_fault_of_a_rank_follows_from_its_broken_device(tmp_path: Path, felt: str) -> None:
    kernel = (
        "mi3 kernel: amdgpu 0000:c5:00.0: amdgpu: socket: 5, die: 1, 2 new uncorrectable hardware "
        "errors detected in umc block"
    )
    header = "mi3:2207:2290 [5] NCCL INFO comm 0x5 rank 5 nranks 8 cudaDev 5 busId c5000 - Init"
    waits = [f"[rank{rank}]: {WAIT.format(rank, 64)}" for rank in (0, 1)]

    assert show(first_of(say(tmp_path, felt, kernel, header, *waits))) == ("C208", [5], ["mi3"])

    other = kernel.replace("c5:00", "05:00")
    assert show(first_of(say(tmp_path, felt, other, header, *waits)))[:2] != ("C208", [5])


HCCL = (
    "[ERROR] 2025-01-08-16:47:31 (PID:4402{0}, Device:{0}, RankID:{0}) EI0002: [PID: 4402{0}] "
    "2025-01-08-16:47:29.201.113 The wait execution of the Notify register times out. Reason: The "
    "Notify register has not received the Notify record from remote rank [{1}]."
)
AIV = (
    "[ERROR] RUNTIME(44024,python):2025-01-08-16:17:28.905.771 [device_error_proc.cc:1398]44903 "
    "The error from device(chipId:3, dieId:0), serial number is 4, there is an exception of aivec "
    "error, core id is 11, error code = 0x800000"
)


def test_fault_that_nobody_signed_is_of_the_rank_that_others_wait_for(tmp_path: Path) -> None:
    assert show(first_of(say(tmp_path, HCCL.format(0, 3), HCCL.format(1, 0), AIV)))[:2] == (
        "C212",
        [3],
    )
    # Two that are waited for: nothing tells whose it is.
    report = say(tmp_path, HCCL.format(0, 3), HCCL.format(1, 2), AIV)
    assert not [item for item in report.findings if item.code == "C212" and item.culprits.ranks]


# ------------------------------------------------------------------------- an address of one host

BOOT = "ws{0}:1402{0}:14071 [0] NCCL INFO Bootstrap : Using {1}<0>"
NOT_REACHED = (
    "wsB:9907:9951 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to {0}<48215> "
    "failed : Software caused connection abort"
)


@pytest.mark.parametrize("bridge", ["docker0:172.17.0.1", "virbr0:192.168.122.1"])
def test_bridge_that_was_not_reached_is_why_processes_did_not_meet(
    tmp_path: Path, bridge: str
) -> None:
    address = bridge.partition(":")[2]
    boots = [BOOT.format(name, bridge) for name in "AB"]

    assert first_of(say(tmp_path, *boots, NOT_REACHED.format(address))).code == "N428"

    report = say(tmp_path, *boots, NOT_REACHED.format("10.0.0.7"))
    assert first_of(report).code == "H121"


# ---------------------------------------------------------------------- entries that a loop prints


@pytest.mark.parametrize(
    "form",
    [
        "{0} 5032 nccl:{1} [[8]] {2} train.py 188",
        "rank {0} 5032 gloo:{1} {2}",
        "({0}, 5032, 'nccl:{1}', [[8]], '{2}')",
    ],
)
def test_entries_without_a_heading_are_compared(tmp_path: Path, form: str) -> None:
    rows = [form.format(rank, "all_reduce", "started") for rank in (1, 2, 3)]
    odd = form.format(0, "broadcast", "scheduled")

    finding = first_of(say(tmp_path, "last entries of each rank", odd, *rows))
    assert show(finding)[:2] == ("H105", [0])


def test_rows_of_a_profile_are_no_entries(tmp_path: Path) -> None:
    rows = [
        "nccl:all_reduce         0.00%       0.000us         0.00%      12.000ms      0.000us",
        "1 5032 nccl:all_reduce 12.5 ms on stream 7",
    ]
    report = say(tmp_path, *rows)

    assert report.verdict is Verdict.INCONCLUSIVE


TIMES = "times across ranks (ms):"


@pytest.mark.parametrize("gap", [" ", "  ", "    "])
def test_times_of_megatron_with_any_blanks(tmp_path: Path, gap: str) -> None:
    rows = [
        f"     rank {rank:2d}:{gap}{1302.8 if rank == 3 else 811.0 + rank}" for rank in range(8)
    ]

    finding = first_of(say(tmp_path, TIMES, "    forward-compute:", *rows))
    assert show(finding)[:2] == ("S301", [3])


# ------------------------------------------------------------------------ what other tools print


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (
            "Mismatched allgather tensor shapes: One rank sent a tensor of shape [8], but ...",
            "H106",
        ),
        ("Mismatched data types: One rank had type float32, but another rank had type", "H107"),
        ("Mismatched collective operations: One rank did an allreduce, but another rank", "H105"),
    ],
)
def test_what_horovod_found_is_no_exception_of_all_ranks(
    tmp_path: Path, words: str, code: str
) -> None:
    raised = [
        line
        for rank in range(3)
        for line in (
            f"[1,{rank}]<stderr>:Traceback (most recent call last):",
            f'[1,{rank}]<stderr>:  File "/job/train.py", line 7, in step',
            f"[1,{rank}]<stderr>:RuntimeError: {words}",
        )
    ]
    assert show(first_of(say(tmp_path, *raised)))[:2] == (code, [])


GID = "::ffff:192.168.{0}.5"
QP = (
    "a3:118:303 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with {0}, on dev "
    "mlx5_0:1, curr state INIT, next state RTR, local GID index 3, local GID {1}, remote GID {2}"
)
REMOTE = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:77, unhandled system error"
)


@pytest.mark.parametrize("error", ["110 Connection timed out", "error Invalid argument errno 22"])
def test_cards_that_could_not_be_connected(tmp_path: Path, error: str) -> None:
    finding = first_of(say(tmp_path, QP.format(error, GID.format(50), GID.format(60)), REMOTE))

    assert (finding.code, finding.details["kind"]) == ("H121", "cards")
    assert "192.168.60.5" in finding.summary


EVENTS = [
    "61m   Warning   FailedScheduling   pod/t-worker-1   0/12 nodes are available: 12 Insufficient",
    '57m   Warning   FailedMount        pod/t-worker-1   MountVolume.SetUp failed for volume "d"',
]


def test_pod_that_was_started_later_is_placed(tmp_path: Path) -> None:
    started = "57m   Normal    Started            pod/{0}   Started container trainer"

    report = say(tmp_path, *EVENTS, started.format("t-worker-1"))
    assert report.verdict is Verdict.INCONCLUSIVE

    for other in ([], [started.format("t-worker-2")]):
        assert first_of(say(tmp_path, *EVENTS, *other)).code == "C210"
    assert first_of(say(tmp_path, started.format("t-worker-1"), *EVENTS)).code == "C210"


def test_pod_and_container_with_a_bar_stand_before_ranks(tmp_path: Path) -> None:
    status = (
        "[E908 11:07:35.1 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank {0}] {1} "
        "Last enqueued NCCL work: {2}, last completed NCCL work: {2}."
    )
    dump = "Received a dump signal due to a collective timeout from  rank 0."
    lines = [f"gpu-07 trainer-0 | [rank{n}]:{WAIT.format(n, 64)}" for n in (0, 1, 2)]
    lines.append(f"gpu-08 trainer-1 | [rank3]:{status.format(3, dump, 23910)}")

    assert show(first_of(say(tmp_path, *lines)))[:2] == ("H101", [3])


@pytest.mark.parametrize("words", ["entering evaluate()", "entering the validation phase"])
def test_rank_that_left_the_loop_for_its_evaluation(tmp_path: Path, words: str) -> None:
    said = f"[rank2] 10/29 16:30:11 INFO  epoch 1 done: 2877 batches, {words}"
    waits = [f"[rank{rank}]: {WAIT.format(rank, 1 if rank == 2 else 64)}" for rank in range(4)]
    assert show(first_of(say(tmp_path, said, *waits)))[:2] == ("H103", [2])

    same = [f"[rank{rank}]: {WAIT.format(rank, 64)}" for rank in range(4)]
    assert not [item for item in say(tmp_path, said, *same).findings if item.culprits.ranks]


# ------------------------------------------------------------- ranks that a loop of a shell prints

LOOPS = [
    "$ for p in 15571 15572 15574; do tr '\\0' '\\n' < /proc/$p/environ | grep ^RANK; done",
    "# for pid in 15571 15572 15574 ; do cat /proc/${pid}/environ | xargs -0n1 | grep -w RANK",
]
ROWS = ["15571 Rl+ -", "15572 Rl+ -", "15574 Tl+ do_signal_stop"]
PS = ["    PID STAT WCHAN                    TIME CMD"]
PS += [f"  {row}        11:20:51 python -u gan.py" for row in ROWS]


@pytest.mark.parametrize("loop", LOOPS)
def test_loop_over_processes_tells_their_ranks(tmp_path: Path, loop: str) -> None:
    ranks = ["RANK=0", "RANK=2", "RANK=1"]
    assert show(first_of(say(tmp_path, *PS, loop, *ranks)))[:2] == ("H113", [1])

    # One of them has no rank, and nothing tells which; other lines are between; a rank twice.
    for told in (ranks[:2], [ranks[0], "cat: permission denied", *ranks[1:]], ["RANK=0"] * 3):
        assert show(first_of(say(tmp_path, *PS, loop, *told)))[:2] == ("H113", [])
