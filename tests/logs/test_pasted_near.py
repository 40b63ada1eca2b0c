"""Neighbours of what strangers pasted, and texts that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report, Verdict

WAIT = (
    "[rank{0}]:[E1112 08:40:10.221004455 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=64, "
    "NumelOut=64, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
XID = "NVRM: Xid (PCI:0000:b7:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def blamed_of(report: Report) -> tuple[set[int], set[str]]:
    """Return all ranks and hosts that a report blames."""
    ranks = {rank for one in report.findings for rank in one.culprits.ranks}
    return ranks, {node for one in report.findings for node in one.culprits.nodes}


# ------------------------------------------------------------------------------ whose lines


@pytest.mark.parametrize("sign", ["[{}] ", "{} "], ids=["in brackets", "alone"])
def test_host_before_lines_is_the_one_whose_port_is_taken(tmp_path: Path, sign: str) -> None:
    refused = "[W socket.cpp:697] [c10d] The client socket has failed to connect to [cn-7]:29500 "
    taken = "The server socket has failed to listen on any local network address. EADDRINUSE"
    report = say(
        tmp_path,
        *[sign.format("cn-8") + refused + "(errno: 111 - Connection refused)."] * 3,
        sign.format("cn-7") + "Traceback (most recent call last):",
        sign.format("cn-7") + '  File "/w/t.py", line 3, in <module>',
        sign.format("cn-7") + "    init()",
        sign.format("cn-7") + f"torch.distributed.DistNetworkError: {taken}",
    )

    assert first_of(report).code == "C210"
    assert blamed_of(report) == (set(), {"cn-7"})


@pytest.mark.parametrize("sign", ["[step-{}] ", "epoch-{} ", "[rank-{}] "])
def test_numbers_before_lines_are_no_hosts(tmp_path: Path, sign: str) -> None:
    lines = [f"{sign.format(number)}loss 2.{number}" for number in range(9)]
    report = say(tmp_path, *lines, f"{sign.format(9)}CUDA error: unspecified launch failure")

    assert blamed_of(report)[1] == set()


@pytest.mark.parametrize(
    "field", ["| INFO | rank=2 | ", "| WARNING  | rank: 2 | ", "rank=2 | ", "rank2  | "]
)
def test_fields_between_bars_tell_the_rank(tmp_path: Path, field: str) -> None:
    stamp = "2026-11-12 08:30:00,120 "
    lines = [
        stamp + field + "data exhausted after 1190 batches",
        *(WAIT.format(rank, 3573) for rank in (0, 1)),
    ]
    assert first_of(say(tmp_path, *lines)).culprits.ranks == [2]


@pytest.mark.parametrize(
    "head",
    [
        ["----------------", "gpu-11", "----------------"],
        ["root@gpu-11:~# dmesg | tail"],
        ["[ops@gpu-11 ~]$ sudo dmesg -T"],
        ["$ ssh gpu-11 dmesg -T"],
        ["and the kernel log of gpu-11:", "", "`dmesg` on gpu-11 has"],
        ["=== gpu-11 ==="],
    ],
)
def test_heading_tells_the_host_of_kernel_lines_below(tmp_path: Path, head: list[str]) -> None:
    report = say(tmp_path, *head, f"[Mon Jun 30 23:58:19 2025] {XID}")

    assert first_of(report).code == "C208"
    assert blamed_of(report)[1] == {"gpu-11"}


@pytest.mark.parametrize(
    "head",
    [
        ["me@login-1:~$ cat all_dmesg.txt"],
        ["----------------", "gpu-[11-13]", "----------------"],
        ["gpu-11 is fine, this is from another one:"],
        ["root@gpu-11:~# dmesg | tail", "quiet", "me@login-1:~$ cat other.txt"],
    ],
)
def test_what_is_no_heading_names_no_host(tmp_path: Path, head: list[str]) -> None:
    report = say(tmp_path, *head, f"[Mon Jun 30 23:58:19 2025] {XID}")

    assert blamed_of(report)[1] == set()


def test_kernel_line_with_its_host_and_no_time_is_of_that_host(tmp_path: Path) -> None:
    report = say(tmp_path, f"gpu-04 kernel: [1209388.101994] {XID}", f"noise kernel: {XID[:4]}")

    assert blamed_of(report)[1] == {"gpu-04"}


def test_addresses_with_one_beginning_are_not_one_host(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "(TorchTrainer pid=30) - (node_id=a, ip=10.0.3.5, pid=41) world_rank=0, local_rank=0",
        "(TorchTrainer pid=30) - (node_id=b, ip=10.0.3.9, pid=42) world_rank=1, local_rank=0",
        "(raylet, ip=10.0.3.9) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 "
        "Workers crashed due to other reasons at node (ID: b, IP: 10.0.3.9)",
    )

    assert first_of(report).code == "C202"
    assert blamed_of(report) == ({1}, {"10.0.3.9"})


@pytest.mark.parametrize(
    "said",
    ["rank 0 is pid 8810, rank 1 is 8811", "pid 8810 = rank 0; pid 8811 = rank 1"],
)
def test_sentence_tells_which_process_is_at_a_prompt(tmp_path: Path, said: str) -> None:
    report = say(tmp_path, *_prompt("ipdb/__main__.py", "pdb.py"), said)

    assert first_of(report).code == "H101"
    assert first_of(report).culprits.ranks == [0]


def _prompt(*files: str) -> list[str]:
    """Write the stacks of a rank at a prompt, and of one that waits for it in backward."""
    return [
        "Process 8810: python t.py",
        'Thread 8810 (idle): "MainThread"',
        "    readline (codecs.py:319)",
        *(f"    cmdloop ({file}:126)" for file in files),
        "    loss_of (t.py:88)",
        "    <module> (t.py:240)",
        "",
        "Process 8811: python t.py",
        'Thread 8811 (active): "MainThread"',
        "    backward (torch/_tensor.py:581)",
        "    <module> (t.py:133)",
        "",
    ]


def test_program_below_a_debugger_is_at_no_prompt(tmp_path: Path) -> None:
    lines = [
        line.replace("cmdloop (pdb.py", "trace_dispatch (bdb.py") for line in _prompt("pdb.py")
    ]
    report = say(tmp_path, *lines)

    assert "prompt" not in " ".join(one.summary for one in report.findings)


# ------------------------------------------------------------------------------ ended well


@pytest.mark.parametrize(
    "end",
    [
        "===================== 12 passed, 3 skipped in 61.02s (0:01:01) =====================",
        "77120         train-7b   COMPLETED      0:0   03:41:09",
        "   JobState=COMPLETED Reason=None Dependency=(null)",
        "Job 'raysubmit_Ab3dEf' succeeded",
    ],
)
def test_what_ended_well_had_no_failure_before(tmp_path: Path, end: str) -> None:
    report = say(tmp_path, WAIT.format(1, 3), "step 9 loss 2.1", end)

    assert blamed_of(report) == (set(), set())
    assert report.verdict in {Verdict.HEALTHY, Verdict.INCONCLUSIVE}


@pytest.mark.parametrize(
    "end",
    [
        "================= 1 failed, 11 passed in 61.02s =================",
        "77120         train-7b   FAILED      1:0   03:41:09",
        "INFO 12 passed in review",
        "uploads COMPLETED 0:0",
    ],
)
def test_what_did_not_end_well_keeps_its_failure(tmp_path: Path, end: str) -> None:
    report = say(tmp_path, WAIT.format(1, 3), end)

    assert first_of(report).code == "C211"


def test_failed_job_beside_one_that_ended_well_stays_failed(tmp_path: Path) -> None:
    ends = ["77120   COMPLETED   0:0   03:41:09", "77121   FAILED   1:0   00:41:09"]
    report = say(tmp_path, WAIT.format(1, 3), *ends)

    assert first_of(report).code == "C211"


STALL = (
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks"
)


@pytest.mark.parametrize(
    ("after", "ranks"), [(["[1,2]<stdout>:Epoch 1 loss: 4.0"], set()), ([], {2})]
)
def test_stall_is_over_when_the_rank_that_was_missed_goes_on(
    tmp_path: Path, after: list[str], ranks: set[int]
) -> None:
    missing = "[1,0]<stderr>:2: [allreduce.layer1.weight]"
    report = say(
        tmp_path, f"[1,0]<stderr>:{STALL}", "[1,0]<stderr>:Missing ranks:", missing, *after
    )

    assert blamed_of(report)[0] == ranks


# ------------------------------------------------------------------------------ kernels that wait


@pytest.mark.parametrize(
    "told",
    [
        "DeepEP timeout for combine receivers, rank {0}, local_expert_idx = 4",
        "DeepEP timeout check failed: rank = {0}, thread = 3, value = 11",
    ],
)
def test_trap_of_a_kernel_that_waited_is_not_the_cause(tmp_path: Path, told: str) -> None:
    lines = []
    for rank in (0, 2):
        lines.append(told.format(rank))
        lines.append(f"[rank{rank}]: RuntimeError: CUDA error: unspecified launch failure")
    own = [
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/w/moe.py", line 3, in forward',
        "[rank3]: IndexError: index 32 is out of bounds for dimension 0 with size 32",
    ]
    report = say(tmp_path, *lines, *own)

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("C204", [3])


def test_launch_failure_without_such_a_wait_is_the_ranks_own(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "INFO DeepEP buffers of rank 0: 128 MiB",
        "[rank0]: RuntimeError: CUDA error: unspecified launch failure",
        *(WAIT.format(rank, 30) for rank in (1, 2)),
    )

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("C212", [0])


# ------------------------------------------------------------------------------ pods


def test_pod_of_a_description_is_the_one_that_was_not_placed(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "$ kubectl describe pod gpt-worker-3 | tail -3",
        "Events:",
        "  Warning  FailedScheduling  2m  default-scheduler  0/4 nodes: Insufficient gpu",
    )

    assert first_of(report).code == "C210"
    assert blamed_of(report)[1] == {"gpt-worker-3"}


def test_list_of_pods_that_start_is_no_failure(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "NAME           READY   STATUS              RESTARTS   AGE",
        "gpt-worker-0   1/1     Running             0          3s",
        "gpt-worker-1   0/1     ContainerCreating   0          3s",
    )

    assert blamed_of(report) == (set(), set())


# ------------------------------------------------------------------------------ who goes first


FIRST = '[rank{0}]:   File "/s/state.py", line 21, in {1}'


@pytest.mark.parametrize(("call", "ranks"), [("_goes_first", {0}), ("train", set())])
def test_block_that_one_enters_first_tells_who_works(
    tmp_path: Path, call: str, ranks: set[int]
) -> None:
    lines = [WAIT.format(rank, 2) for rank in (1, 2, 3)]
    lines += [
        "[rank1]: Traceback (most recent call last):",
        FIRST.format(1, call),
        "[rank1]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
    ]
    bar = "Tokenizing:  38%|###8      | 1873/4924 [29:33<48:07, 10.37 examples/s]"
    report = say(tmp_path, bar, *lines)

    assert report.findings[0].code == "H117"
    assert blamed_of(report)[0] == ranks


# ------------------------------------------------------------------------------ tables


def _times(phase: str, *values: float) -> list[str]:
    rows = [f"     rank {rank:2}: {value:.2f}" for rank, value in enumerate(values)]
    return [f"  {phase}:", *rows]


def test_rank_that_computes_longest_is_slow(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "times across ranks (ms):",
        *_times("backward-compute", 900, 905, 1400, 903, 899, 901, 902, 900),
        *_times("all-grads-sync", 520, 521, 9, 519, 520, 522, 520, 523),
    )

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("S301", [2])


@pytest.mark.parametrize(
    "rows",
    [
        _times("all-grads-sync", 9, 10, 520, 9, 10, 9, 9, 10),
        _times("forward-compute", 900, 905, 960, 903, 899, 901, 902, 900),
        _times("forward-compute", 900, 905, 903, 901, 1900, 1903, 1901, 1902),
    ],
    ids=["who waits", "nearly alike", "two stages"],
)
def test_times_that_tell_of_no_slow_rank(tmp_path: Path, rows: list[str]) -> None:
    report = say(tmp_path, "times across ranks (ms):", *rows)

    assert blamed_of(report)[0] == set()


CLOCKS = (
    "index, clocks.sm [MHz], temperature.gpu, utilization.gpu [%], clocks_throttle_reasons.active"
)


def _devices(odd: str) -> list[str]:
    usual = [f"{index}, 1980 MHz, 61, 99 %, 0x0000000000000004" for index in (0, 1, 3)]
    return [CLOCKS, *usual, odd]


@pytest.mark.parametrize(
    "odd",
    [
        "2, 1980 MHz, 61, 99 %, 0x0000000000000080",
        "2, 1980 MHz, 90, 99 %, 0x0000000000000020",
        "2, 900 MHz, 61, 99 %, 0x0000000000000000",
    ],
    ids=["power brake", "thermal", "clock"],
)
def test_device_with_a_reason_is_throttled(tmp_path: Path, odd: str) -> None:
    report = say(tmp_path, *_devices(odd))

    assert first_of(report).code == "N413"
    assert "device 2" in first_of(report).summary
    assert blamed_of(report)[0] == set()  # nobody says whose device it is


@pytest.mark.parametrize(
    "odd", ["2, 1980 MHz, 61, 99 %, 0x0000000000000004", "2, 210 MHz, 31, 0 %, 0x0000000000000001"]
)
def test_capped_or_idle_device_is_not_throttled(tmp_path: Path, odd: str) -> None:
    assert blamed_of(say(tmp_path, *_devices(odd))) == (set(), set())
    assert all(one.code != "N413" for one in say(tmp_path, *_devices(odd)).findings)


def test_loop_that_waits_for_data_is_told_by_what_it_prints(tmp_path: Path) -> None:
    line = "Epoch: [0][ {}/500]\tTime  0.950 ( 0.930)\tData  0.711 ( 0.702)\tLoss 6.{}"
    report = say(tmp_path, *(line.format(number, number) for number in range(10, 60, 10)))

    assert first_of(report).code == "S309"


def test_loop_that_hardly_waits_for_data_is_not(tmp_path: Path) -> None:
    line = "Epoch: [0][ {}/500]\tTime  0.950 ( 0.930)\tData  0.011 ( 0.012)\tLoss 6.{}"
    report = say(tmp_path, *(line.format(number, number) for number in range(10, 60, 10)))

    assert all(one.code != "S309" for one in report.findings)


# ------------------------------------------------------------------------------ files and fabrics

HUNG = "INFO: task {}:61120 blocked for more than 120 seconds."
EVICTED = (
    "LustreError: 167-0: scratch-OST001c-osc-ffff9a: This client was evicted by scratch-OST001c; "
    "in progress operations using this service will fail."
)


@pytest.mark.parametrize(("task", "nodes"), [("python3", {"lrd-7"}), ("kworker/0:1", set())])
def test_file_system_that_keeps_a_rank_is_the_cause_without_a_limit(
    tmp_path: Path, task: str, nodes: set[str]
) -> None:
    report = say(
        tmp_path,
        "0: INFO: loading shard 0/2 ... done in 14.2 s",
        "1: INFO: loading shard 1/2 ...",
        "----------------",
        "lrd-7",
        "----------------",
        f"[Tue Mar  4 02:20:19 2025] {EVICTED}",
        f"[Tue Mar  4 02:24:01 2025] {HUNG.format(task)}",
    )

    assert blamed_of(report)[1] == nodes


def test_host_whose_fabric_manager_does_not_run_is_at_fault(tmp_path: Path) -> None:
    error = "CUDA initialization: Unexpected error. Error 802: system not yet initialized"
    report = say(
        tmp_path,
        *(f"dgx-{number}: [rank{number}]: world=3, waiting for peers" for number in range(3)),
        f"dgx-2: [rank2]: RuntimeError: {error}",
    )

    assert first_of(report).code == "C208"
    assert blamed_of(report) == (set(), {"dgx-2"})


UNREADY = "UserWarning: CUDA initialization: Error 802: system not yet initialized"
NO_DEVICE = [
    "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    "RuntimeError: No CUDA GPUs are available",
]
MANAGER = (
    "nv-fabricmanager[71]: fabric manager NVIDIA GPU driver interface version 550.54.15 don't "
    "match with driver version 550.90.07. Please update with matching NVIDIA driver package."
)


@pytest.mark.parametrize("raised", NO_DEVICE)
@pytest.mark.parametrize("is_first", [True, False])
def test_fabric_manager_of_another_version_is_a_mistake_of_its_host(
    tmp_path: Path, raised: str, *, is_first: bool
) -> None:
    manager = [f"Oct 02 05:11:09 hx-3 {MANAGER}"]
    job = [f"/opt/torch/cuda/__init__.py:129: {UNREADY}", raised]
    report = say(tmp_path, *((*manager, *job) if is_first else (*job, *manager)))

    assert [one.code for one in report.findings if one.severity != "note"] == ["C210"]
    assert first_of(report).culprits.nodes == ["hx-3"]
    assert "550.54.15" in first_of(report).summary


@pytest.mark.parametrize(
    ("shown", "is_on_it"),
    [
        (("$ kubectl get pod sft-2 -o wide | awk '{print $7}'", "NODE", "hx-3"), True),
        (
            (
                "$ kubectl get pods -o wide",
                "NAME    READY   STATUS    RESTARTS      AGE   IP          NODE   NOMINATED NODE",
                "sft-1   1/1     Running   0             2h    10.0.1.7    hx-9   <none>",
                "sft-2   0/1     Error     1 (5m ago)    2h    10.0.1.8    hx-3   <none>",
            ),
            True,
        ),
        (("$ kubectl get pod sft-2 -o wide | awk '{print $7}'", "NODE", "hx-9"), False),
        (("$ kubectl get pod sft-1 -o wide | awk '{print $7}'", "NODE", "hx-3"), False),
        ((), False),
    ],
    ids=["column", "table", "elsewhere", "another", "unknown"],
)
def test_fabric_manager_explains_the_pods_that_are_on_its_host(
    tmp_path: Path, shown: tuple[str, ...], *, is_on_it: bool
) -> None:
    job = f"RuntimeError: {UNREADY.partition(': CUDA')[2]}"
    lines = ["$ kubectl logs sft-2", '  File "/w/t.py", line 3, in <module>', "    init()", job]
    report = say(tmp_path, *lines, *shown, f"Oct 02 05:11:09 hx-3 {MANAGER}")

    assert (first_of(report).code == "C210") is is_on_it
    assert ("hx-3" in blamed_of(report)[1]) or not is_on_it


def test_fabric_manager_of_one_host_explains_nothing_on_another(tmp_path: Path) -> None:
    lines = [f"Oct 02 05:11:09 hx-3 {MANAGER}", f"hx-4: [rank8]: RuntimeError: {UNREADY[13:]}"]
    report = say(tmp_path, *lines, "hx-3: [rank0]: step 3", "hx-4: [rank8]: step 3")

    assert {one.code for one in report.findings if one.severity != "note"} != {"C210"}


# ------------------------------------------------------------------------------ lists of processes

PS = "    PID STAT WCHAN                          CMD"


def _processes(odd: str) -> list[str]:
    usual = [
        f"   88{number} Rl+  -                              python t.py" for number in (10, 12)
    ]
    named = [f"rank {rank} is pid 88{10 + rank}" for rank in range(3)]
    return [*named, "$ ps -o pid,stat,wchan:30,cmd", PS, *usual, odd]


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        ("   8811 Tl   do_signal_stop                 python t.py", "H113"),
        ("   8811 D    folio_wait_bit_common          python t.py", "H116"),
        ("   8811 Dl+  nfs4_run_open_task             python t.py", "H116"),
    ],
)
def test_process_that_does_not_run_is_the_one_others_wait_for(
    tmp_path: Path, odd: str, code: str
) -> None:
    report = say(tmp_path, *_processes(odd))

    assert (first_of(report).code, first_of(report).culprits.ranks) == (code, [1])


@pytest.mark.parametrize(
    "odd",
    [
        "   8811 Sl+  futex_wait_queue               python t.py",
        "   8811 D    rpc_wait_bit_killable          [kworker/u9:1]",
        "   8811 D    nvidia_ioctl                   python t.py",
    ],
)
def test_process_that_sleeps_or_is_another_program_is_not(tmp_path: Path, odd: str) -> None:
    assert blamed_of(say(tmp_path, *_processes(odd))) == (set(), set())


# ------------------------------------------------------------------------------ code and records


@pytest.mark.parametrize(
    "text",
    [
        'train/guard.py:88:        raise RuntimeError("CUDA error: device-side assert triggered")',
        "docs/faq.md:12:RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
        'src/a.cpp-91-  std::cerr << "Segmentation fault";',
        'raise RuntimeError("CUDA error: unspecified launch failure")',
    ],
)
def test_code_and_documents_that_grep_found_are_no_failure(tmp_path: Path, text: str) -> None:
    assert all(one.code[0] != "C" for one in say(tmp_path, text).findings)


@pytest.mark.parametrize(
    "text",
    [
        "/w/a.cu:155: gather: block: [1,0,0], thread: [2,0,0] Assertion `index < size` failed.",
        "/w/b.cpp:91: RuntimeError: CUDA error: unspecified launch failure",
    ],
)
def test_message_that_begins_with_a_place_is_one(tmp_path: Path, text: str) -> None:
    assert first_of(say(tmp_path, text, WAIT.format(1, 30))).code == "C212"


RECORD = "2026-11-12 08:10:00 | {0} | rank=5 | trainer:fit:88 - step failed"
RAISED = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 90, in fit',
    "KeyError: 'labels'",
]


@pytest.mark.parametrize(
    ("head", "ranks"),
    [([RECORD.format("ERROR")], {5}), ([RECORD.format("INFO")], set()), ([], set())],
)
def test_record_of_an_error_signs_the_traceback_below_it(
    tmp_path: Path, head: list[str], ranks: set[int]
) -> None:
    report = say(tmp_path, *head, *RAISED, *(WAIT.format(rank, 12) for rank in (1, 2)))

    assert first_of(report).code == "C204"
    assert blamed_of(report)[0] == ranks


def test_prefix_of_the_first_line_signs_the_traceback_behind_it(tmp_path: Path) -> None:
    head = "[2026-11-12 08:10:00 TP5] worker hit an exception: " + RAISED[0]
    report = say(tmp_path, head, *RAISED[1:], *(WAIT.format(rank, 12) for rank in (1, 2)))

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("C204", [5])


def test_command_that_a_shell_prints_tells_the_local_rank(tmp_path: Path) -> None:
    killed = (
        "run.sh: line 4: 71120 Segmentation fault      (core dumped) python t.py --local_rank=2"
    )
    lost = "[rank{}]: ncclRemoteError: A call failed possibly due to a network error"
    report = say(tmp_path, killed, *(lost.format(rank) for rank in (0, 1, 3)))

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("C203", [2])


# ------------------------------------------------------------------------------ what torch throws


@pytest.mark.parametrize(
    ("what", "code"),
    [(WAIT.format(0, 7).partition(":685] ")[2], "C211"), ("vector::_M_range_check", "C203")],
)
def test_exception_of_the_watchdog_is_no_crash_of_its_own(
    tmp_path: Path, what: str, code: str
) -> None:
    report = say(
        tmp_path,
        WAIT.format(0, 7),
        WAIT.format(1, 7),
        "terminate called after throwing an instance of 'std::runtime_error'",
        f"  what():  {what}",
        "Fatal Python error: Aborted",
    )

    assert first_of(report).code == code


def test_rank_that_left_and_waits_behind_the_loop_left_early(tmp_path: Path) -> None:
    behind = WAIT.format(1, 40).replace("NumelIn=64, NumelOut=64", "NumelIn=1, NumelOut=1")
    lines = ["[rank1]: no more batches", *(WAIT.format(rank, 40) for rank in (0, 2, 3)), behind]

    assert (first_of(say(tmp_path, *lines)).code, blamed_of(say(tmp_path, *lines))[0]) == (
        "H103",
        {1},
    )


@pytest.mark.parametrize(
    ("words", "ranks"), [("found Inf in local grad norm", {3}), ("found NaN in grad norm", set())]
)
def test_values_of_a_rank_of_its_own_name_it(tmp_path: Path, words: str, ranks: set[int]) -> None:
    lines = [
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/w/t.py", line 3, in check',
        f"[rank3]: RuntimeError: Unexpected result nan (message='{words} for bucket #0')",
        "[rank1]: ncclRemoteError: A call failed possibly due to a network error",
    ]
    report = say(tmp_path, *lines)
    blamed = {rank for one in report.findings if one.code == "V502" for rank in one.culprits.ranks}
    assert blamed == ranks


CHECK = "AssertionError: Rank {0}: found {1} in local {2}. Device: 3, node: nd-11"
LOST = "[rank5]:[E PG.cpp:1182] [Rank 5] NCCL error: remote process exited or there was an error"


@pytest.mark.parametrize("what", ["forward loss calculation", "grad norm before data-parallel sum"])
@pytest.mark.parametrize(
    "prefix", ["", "nd-11: ", "[default3]:", "[pod pre-train-2 gpu3] ", "[nd-11/cuda:3] "]
)
def test_rank_in_the_message_of_a_check_of_its_own_values_is_named(
    tmp_path: Path, what: str, prefix: str
) -> None:
    finding = first_of(say(tmp_path, prefix + CHECK.format(19, "NaN", what), LOST))

    assert (finding.code, finding.culprits.ranks) == ("V502", [19])
    assert finding.victims.ranks != "19"


def test_checks_of_several_ranks_name_none(tmp_path: Path) -> None:
    lines = [CHECK.format(rank, "NaN", "forward loss calculation") for rank in (19, 23)]
    finding = first_of(say(tmp_path, *lines, LOST))

    assert (finding.code, finding.culprits.ranks) == ("V502", [])


@pytest.mark.parametrize(
    "line", ["Rank 19: found NaN in grad norm", "INFO Rank 19: found NaN in local cache, ignored"]
)
def test_line_that_ends_nothing_is_no_check(tmp_path: Path, line: str) -> None:
    assert first_of(say(tmp_path, line, LOST)).code == "C209"


PODS = [
    "NAME           READY   STATUS    RESTARTS   AGE",
    "gpt-worker-0   1/1     Running   0          21m",
    "gpt-worker-3   0/1     Pending   0          21m",
]
NOT_PLACED = "Warning  FailedScheduling  2m  default-scheduler  0/4 nodes: Insufficient gpu"


@pytest.mark.parametrize(
    "above",
    [
        ["$ kubectl logs gpt-worker-0 --tail 1", "step 0 of 400"],
        ["$ kubectl logs gpt-worker-0 | tail -2", "RendezvousTimeoutError", "rendezvous closed"],
    ],
)
@pytest.mark.parametrize("event", [NOT_PLACED, NOT_PLACED.replace("2m  ", "2m (x4 over 20m)  ")])
def test_pod_whose_log_stands_above_an_event_is_not_the_one_that_waits(
    tmp_path: Path, event: str, above: list[str]
) -> None:
    report = say(tmp_path, "$ kubectl get pods", *PODS, *above, event)

    assert first_of(report).code == "C210"
    assert blamed_of(report)[1] == {"gpt-worker-3"}
