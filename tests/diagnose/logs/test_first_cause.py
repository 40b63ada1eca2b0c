"""The first cause in logs is found by what follows from what; each decoy of the catalogue fails."""

from __future__ import annotations

import json
from pathlib import Path

from tests.diagnose.logs.jobs import CUT, REMOTE, comm, cut, first, tell, timeout, trace

from whystuck.evidence.finding import Confidence, Verdict

TABLE = """\
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-03-04_10:12:31
  host      : n0
  rank      : {second} (local_rank: {second})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-04_10:12:31
  host      : n0
  rank      : {first} (local_rank: {first})
  exitcode  : {end} (pid: 4100)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
SENDING = (
    "W0304 10:12:31.350000 4000 torch/distributed/elastic/multiprocessing/api.py:1029] Sending "
    "process {pid} closing signal SIGTERM\n"
)
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def at(time: str, text: str, node: str = "n0") -> str:
    return f"{time} {node} kernel: {text}\n"


# ------------------------------------------------------------------------------------ ten decoys


def test_waiting_ranks_are_victims(tmp_path: Path) -> None:
    logs = {f"rank-{rank}.log": timeout(rank) for rank in (0, 1, 3)} | {"rank-2.log": "step 1\n"}
    finding = first(tmp_path, logs)

    assert (finding.code, finding.culprits.ranks) == ("C211", [])
    assert finding.victims.ranks == "0-1,3"
    assert finding.details["silent"] == [2]
    assert (finding.details["op"], finding.details["sequence"]) == ("allreduce", 812)


def test_first_observed_failure_of_torchrun_is_no_cause(tmp_path: Path) -> None:
    table = TABLE.format(first=0, end=1, second=2, code=1, pid=4102)
    text = cut(0, 1, 3, error=REMOTE) + trace(2, "ValueError: bad batch", "data.py:59") + table
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
    assert finding.where[0].line == 59


def test_kills_after_a_failure_are_the_launchers(tmp_path: Path) -> None:
    table = TABLE.format(first=0, end="-9 (SIGKILL)", second=2, code=1, pid=4102)
    table = table.replace("-9 (SIGKILL) (pid: 4100)", "-9 (pid: 4100) (SIGKILL)")
    text = trace(2, "OSError: [Errno 5] Input/output error") + SENDING.format(pid=4100) + table
    finding = first(tmp_path, {"train.log": text})

    assert finding.culprits.ranks == [2]
    assert finding.code != "C201"


def test_lost_connections_follow_from_the_first_error(tmp_path: Path) -> None:
    text = cut(0, 1, 2) + trace(3, "KeyError: 'shard'", "data.py:12")
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C204", [3])


def test_memory_of_absurd_size_follows_from_an_abort(tmp_path: Path) -> None:
    absurd = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory."
    text = trace(0, absurd) + trace(2, "RuntimeError: expert 7 has no capacity", "model.py:30")
    finding = first(tmp_path, {"train.log": text + cut(1, 3, error=REMOTE)})

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])


def test_nvlink_errors_after_sigterm_belong_to_the_end(tmp_path: Path) -> None:
    nvlink = "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"
    text = (
        "W0525 17:00:00.100000 4000 torch/distributed/elastic/agent/server/api.py:753] Received 15 "
        f"death signal, shutting down workers\n[rank3]: RuntimeError: {nvlink}\n"
    )
    report = tell(tmp_path, {"train.log": text})

    assert [item.code for item in report.findings] == ["C207"]
    assert report.findings[0].culprits.ranks == []


def test_the_same_trace_on_all_ranks_blames_nobody(tmp_path: Path) -> None:
    error = "AttributeError: 'Block' object has no attribute 'norm3'"
    text = "".join(trace(rank, error, "model.py:77") for rank in range(4))
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C205", [])


def test_a_log_that_is_missing_says_nothing(tmp_path: Path) -> None:
    logs = {f"rank-{rank}.log": cut(rank) for rank in (0, 1, 3)}
    report = tell(tmp_path, logs)

    assert [(item.code, item.culprits.ranks) for item in report.findings] == [("C209", [])]
    assert report.findings[0].victims.ranks == "0-1,3"


def test_a_low_number_in_another_group_is_no_rank_behind(tmp_path: Path) -> None:
    text = timeout(0, 20112) + timeout(1, 20112) + timeout(2, 12, "SEND") + timeout(3, 12, "SEND")
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C211", [])
    assert finding.victims.ranks == "0-3"


def test_clocks_of_whole_seconds_do_not_order_two_failures(tmp_path: Path) -> None:
    report = tell(
        tmp_path,
        {
            "logs/n0/rank_1.log": "2025-05-15 10:20:30 ERROR failed\nValueError: NaN to integer\n",
            "logs/n1/rank_4.log": "2025-05-15 10:20:30 ERROR failed\nKeyError: 'part-3'\n",
        },
    )

    assert report.verdict is Verdict.INCONCLUSIVE
    assert {item.confidence for item in report.findings} == {Confidence.POSSIBLE}
    assert [item.culprits.ranks for item in report.findings] == [[], []]
    named = [item.details["candidates"]["ranks"] for item in report.findings]
    assert sorted(named) == [[1], [4]]


# ------------------------------------------------------------------------- machines and the job


def test_broken_device_is_led_to_its_rank(tmp_path: Path) -> None:
    text = comm(5, 8, "9b000") + trace(5, "torch.AcceleratorError: CUDA error: unknown error")
    finding = first(
        tmp_path,
        {
            "train.log": text + cut(0, 2, error=REMOTE),
            "n0/dmesg.txt": f"[2534556.100000] {XID}\n",
        },
    )

    assert (finding.code, finding.culprits.ranks, finding.culprits.nodes) == ("C208", [5], ["n0"])
    assert finding.details["xid"] == 79
    assert finding.because[0].artifact == "n0/dmesg.txt"


def test_xid_of_another_day_is_no_cause(tmp_path: Path) -> None:
    stamp = "2026-04-20 20:20:20,470 "
    text = trace(6, "IndexError: list index out of range", stamp=stamp)
    finding = first(
        tmp_path,
        {
            "train.log": text + cut(0, 7, error=REMOTE),
            "n0/kern.log": at("2026-04-17T20:20:20.000000+00:00", XID),
        },
    )

    assert (finding.code, finding.culprits.ranks) == ("C204", [6])


def test_xid_before_the_last_boot_is_no_cause(tmp_path: Path) -> None:
    boot = "Linux version 6.8.0-45-generic (buildd@lcy02) #45-Ubuntu SMP"
    kernel = at("Apr 17 20:20:20", XID) + at("Apr 17 20:35:20", boot)
    logs = {"rank-0.log": cut(0, error=REMOTE), "rank-1.log": cut(1, error=REMOTE)}
    finding = first(tmp_path, logs | {"n0/kern.log": kernel})

    assert (finding.code, finding.culprits.nodes) == ("C209", [])


def test_broken_device_of_a_host_whose_ranks_are_well_does_not_explain_an_exception(
    tmp_path: Path,
) -> None:
    text = comm(5, 8, "9b000") + trace(2, "IndexError: list index out of range", "eval.py:14")
    finding = first(tmp_path, {"train.log": text, "n1/dmesg.txt": f"[2534556.100000] {XID}\n"})

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])


def test_out_of_memory_kill_of_a_foreign_process_is_no_cause(tmp_path: Path) -> None:
    killed = "Out of memory: Killed process 2210 (node_exporter) total-vm:812345kB, anon-rss:6kB"
    crash = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f0000aaa740 (most recent "
        'call first):\n  File "/app/rope.py", line 34 in forward\n'
        "E0601 09:30:01.300000 4000 torch/distributed/elastic/multiprocessing/api.py:1003] failed "
        "(exitcode: -11) local_rank: 2 (pid: 8803) of binary: /opt/venv/bin/python3.11\n"
    )
    finding = first(
        tmp_path, {"train.log": crash, "n0/dmesg.txt": f"[Mon Jun  1 08:29:55 2026] {killed}\n"}
    )

    assert finding.code == "C203"
    assert (finding.where[0].file, finding.where[0].line) == ("/app/rope.py", 34)


def test_kernel_kill_of_a_rank_is_host_memory_not_a_signal(tmp_path: Path) -> None:
    killed = (
        "Memory cgroup out of memory: Killed process 4103 (pt_main_thread) total-vm:412345678kB, "
        "anon-rss:231456789kB, file-rss:81234kB"
    )
    usage = "memory: usage 943718400kB, limit 943718400kB, failcnt 88213"
    ended = (
        "E0511 02:07:44.601000 4000 torch/distributed/elastic/multiprocessing/api.py:874] failed "
        "(exitcode: -9) local_rank: 3 (pid: 4103) of binary: /opt/venv/bin/python3.11\n"
    )
    finding = first(
        tmp_path,
        {
            "train.log": comm(3, 4, "9b000") + ended,
            "n0/kern.log": at("May 11 02:07:44", usage) + at("May 11 02:07:44", killed),
        },
    )

    assert (finding.code, finding.culprits.ranks) == ("C202", [3])
    assert finding.details == {"limit_bytes": 943718400 * 1024, "rss_bytes": 231456789 * 1024}
    assert finding.confidence is Confidence.CERTAIN


def test_exception_long_before_the_time_limit_is_the_cause(tmp_path: Path) -> None:
    text = trace(1, "ValueError: bad", stamp="2025-02-20 10:00:00,120 ")
    limit = "slurmstepd: error: *** JOB 77 ON v-03 CANCELLED AT 2025-02-20T12:00:00 DUE TO TIME "
    finding = first(tmp_path, {"slurm-77.out": text + limit + "LIMIT ***\n"})

    assert (finding.code, finding.culprits.ranks) == ("C204", [1])


def test_time_limit_alone_is_the_end_from_outside(tmp_path: Path) -> None:
    limit = "slurmstepd: error: *** JOB 77 ON v-03 CANCELLED AT 2025-02-20T12:00:00 DUE TO TIME "
    finding = first(tmp_path, {"slurm-77.out": "step 1\n" + limit + "LIMIT ***\n" + cut(2)})

    assert (finding.code, finding.details["kind"]) == ("C207", "time-limit")
    assert "sacct -j 77" in finding.remedies[0]


# ------------------------------------------------------------------------------- words and votes


def test_text_between_quotes_is_data(tmp_path: Path) -> None:
    sample = 'sample: "RuntimeError: CUDA error: an illegal memory access was encountered" -> gpu\n'
    text = sample + trace(0, "BrokenPipeError: [Errno 32] Broken pipe", "push.py:18")
    finding = first(tmp_path, {"train.log": text + cut(1, 2, 3, error=REMOTE)})

    assert (finding.code, finding.culprits.ranks) == ("C204", [0])


def test_rank_that_peers_name_is_blamed_for_a_barrier(tmp_path: Path) -> None:
    barrier = "RuntimeError: [Rank 0]: Ranks 3 failed to pass monitoredBarrier in 30000 ms."
    peer = (
        "RuntimeError: Rank {0} successfully reached monitoredBarrier, but received errors while "
        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
    text = trace(0, barrier) + trace(1, peer.format(1)) + trace(2, peer.format(2))
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("H101", [3])


def test_device_assertion_is_told_with_its_condition(tmp_path: Path) -> None:
    check = (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: "
        "[12,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    )
    error = "torch.AcceleratorError: CUDA error: device-side assert triggered"
    text = check * 3 + trace(1, error, "model.py:55") + cut(0, 2, error=REMOTE)
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C212", [1])
    assert finding.details["assertion"] == "srcIndex < srcSelectDimSize"
    assert finding.where[0].line == 55


def test_watchdog_abort_is_no_native_crash(tmp_path: Path) -> None:
    aborted = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG 0 Rank 1] Process group watchdog thread terminated with exception\n"
        "Fatal Python error: Aborted\n"
    )
    report = tell(tmp_path, {"rank-1.log": timeout(1) + aborted, "rank-0.log": timeout(0)})

    assert [item.code for item in report.findings] == ["C211"]


def test_healthy_logs_give_no_error_and_no_warning(tmp_path: Path) -> None:
    steps = "".join(f"step {step} loss 2.{step} lr 3.0e-04 1.1 s/step\n" for step in range(50))
    report = tell(tmp_path, {"rank-0.log": comm(0, 2, "9b000") + steps, "rank-1.log": steps})

    assert report.findings == []
    assert report.verdict is Verdict.INCONCLUSIVE


def test_lost_peer_and_cut_ranks_are_never_blamed(tmp_path: Path) -> None:
    logs = {"node-n0.log": cut(0, 1, error=REMOTE), "node-n1.log": cut(2, 3, error=CUT)}
    report = tell(tmp_path, logs)

    assert [(item.code, item.culprits.ranks) for item in report.findings] == [("C209", [])]


def test_failure_of_an_earlier_run_in_the_same_file_is_none_of_this_one(tmp_path: Path) -> None:
    agent = "torch/distributed/elastic/multiprocessing/api.py"
    text = (
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        f"E0603 08:11:09.000000 20 {agent}:869] failed (exitcode: 1) local_rank: 1 (pid: 31) of x\n"
        "[2026-06-03 08:20:00] run 42 starts\n[2026-06-03 12:28:40] step 2900 loss 2.2\n"
        "W0603 12:29:11.000000 90 torch/distributed/elastic/agent/server/api.py:719] Received "
        "Signals.SIGTERM death signal, shutting down workers\n"
    )
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C207", [])


def test_calls_that_torch_compares_name_the_one_that_differs(tmp_path: Path) -> None:
    said = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running "
        "collective: CollectiveFingerPrint(SequenceNumber=311, OpType={1}, TensorShape={2}, "
        "TensorDtypes=Float), but Rank {3} is running collective: CollectiveFingerPrint("
        "SequenceNumber=311, OpType={4}, TensorShape={5}, TensorDtypes=Float)."
    )
    shape = trace(2, said.format(2, "ALLREDUCE", "[7]", 0, "ALLREDUCE", "[8]"), "gather.py:44")
    others = trace(1, said.format(1, "ALLREDUCE", "[8]", 2, "ALLREDUCE", "[7]"))
    finding = first(tmp_path / "shape", {"train.log": others + shape})
    assert (finding.code, finding.culprits.ranks) == ("H106", [2])
    assert finding.where[0].line == 44

    op = trace(1, said.format(1, "BROADCAST", "[8]", 0, "ALLREDUCE", "[8]"))
    report = tell(tmp_path / "op", {"train.log": op})
    assert report.verdict is Verdict.INCONCLUSIVE
    assert [(item.code, item.culprits.ranks) for item in report.findings] == [("H105", [])]


def test_aborts_without_a_word_do_not_decide(tmp_path: Path) -> None:
    ended = (
        "E0304 10:12:31.5 4000 torch/distributed/elastic/multiprocessing/api.py:1003] failed "
        "(exitcode: -6) local_rank: 0 (pid: 4100) of binary: /opt/venv/bin/python3.11\n"
    )
    report = tell(tmp_path, {"train.log": ended})

    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.findings == []


def test_transport_that_gave_up_is_only_possible(tmp_path: Path) -> None:
    gave_up = (
        "node3:81:402 [4] transport/net_ib.cc:2148 NCCL WARN NET/IB: Got completion from peer "
        "10.0.0.7<55921> with status=12 opcode=32600 len=0 vendor err 129 (Send)\n"
    )
    report = tell(tmp_path, {"rank-4.log": gave_up, "rank-5.log": "step 1\n"})

    assert report.verdict is Verdict.INCONCLUSIVE
    assert [item.confidence for item in report.findings] == [Confidence.POSSIBLE]


def test_launcher_says_how_a_process_ended_that_was_not_seen_to_end(tmp_path: Path) -> None:
    exits = {0: 15, 1: None, 2: 15}
    files = {
        f"n0/rank-{rank}/exit.json": json.dumps(
            {"pid": 40 + rank, "signal": signal, "source": "pidfd" if signal else "not seen"}
            | ({"after_launcher_kill": True} if signal else {})
        )
        for rank, signal in exits.items()
    }
    ended = (
        "E0304 10:12:31.5 40 torch/distributed/elastic/multiprocessing/api.py:1003] failed "
        "(exitcode: -9) local_rank: 1 (pid: 41) of binary: /opt/venv/bin/python3.11\n"
    )
    finding = first(tmp_path, files | {"launcher.txt": ended})

    assert (finding.code, finding.culprits.ranks) == ("C201", [1])
    assert finding.details["signal"] == "SIGKILL"


def test_earlier_attempt_is_told_and_is_no_cause(tmp_path: Path) -> None:
    agent = "4000 torch/distributed/elastic/agent/server/api.py:960]"
    text = (
        "[rank3]: requests.exceptions.ConnectionError: Max retries exceeded\n"
        f"I0823 07:16:30.300000 {agent} [default] Worker group FAILED. 1/1 attempts left; will "
        "restart worker group\n"
    )
    report = tell(tmp_path, {"train.log": text + trace(0, "ValueError: bad", "eval.py:7")})

    assert [(item.code, item.culprits.ranks) for item in report.findings] == [("C204", [0])]
    (gap,) = [gap for gap in report.gaps if gap.what == "attempt 0"]
    assert "Max retries exceeded" in gap.reason
    assert "train.log:1" in gap.reason
