"""What single forms of logs tell, beside the cases of the corpus: each log is a few lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystuck.evidence.finding import Finding, Report, Severity, Verdict
from whystuck.pipeline import diagnose_paths, read_evidence

_CALL = (
    "Rank {0} is running collective: CollectiveFingerPrint(SequenceNumber=52, OpType={1}, "
    "TensorShape=[{2}], TensorDtypes={3}, TensorDeviceTypes=TensorOptions(dtype=float (default), "
    "device=cuda, layout=Strided (default)))"
)
_CHECK = "RuntimeError: Detected mismatch between collectives on ranks. {0}, but {1}."


def say(folder: Path, *texts: str, name: str = "train.log") -> Report:
    """Diagnose a job of which there is one log."""
    (folder / name).write_text("\n".join(texts) + "\n")
    return diagnose_paths([folder])


def first_of(report: Report) -> Finding:
    return next(item for item in report.findings if item.severity is not Severity.NOTE)


def disagree(*calls: tuple[int, str, str, str]) -> list[str]:
    """Write what ranks print whose call differs from that of a peer."""
    texts = {rank: _CALL.format(rank, *call) for rank, *call in calls}
    ranks = [rank for rank, *_ in calls]
    peers = [*ranks[1:], ranks[0]]
    return [
        f"[rank{rank}]: {_CHECK.format(texts[rank], texts[peer])}"
        for rank, peer in zip(ranks, peers, strict=True)
    ]


@pytest.mark.parametrize(
    ("code", "odd", "key"),
    [
        ("H105", ("BROADCAST", "8", "Float"), "ops"),
        ("H106", ("ALLREDUCE", "7", "Float"), "shapes"),
        ("H107", ("ALLREDUCE", "8", "BFloat16"), "dtypes"),
    ],
)
def test_rank_that_calls_something_else_is_named(
    tmp_path: Path, code: str, odd: tuple[str, str, str], key: str
) -> None:
    usual = ("ALLREDUCE", "8", "Float")
    calls = [(0, *usual), (1, *usual), (2, *odd), (3, *usual)]

    finding = first_of(say(tmp_path, *disagree(*calls)))

    assert finding.code == code
    assert finding.culprits.ranks == [2]
    assert set(finding.details[key]) == {"0", "1", "2", "3"}
    assert finding.details["sequence"] == 52


def test_two_ranks_that_disagree_are_both_innocent(tmp_path: Path) -> None:
    calls = [(0, "ALLREDUCE", "8", "Float"), (1, "ALLREDUCE", "7", "Float")]

    finding = first_of(say(tmp_path, *disagree(*calls)))

    assert finding.code == "H106"
    assert finding.culprits.ranks == []
    assert finding.details["shapes"] == {"0": [8], "1": [7]}


def test_traceback_in_the_table_of_the_launcher_has_its_rank(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-02-16_21:40:02",
        "  host      : lab-gpu",
        "  rank      : 6 (local_rank: 6)",
        "  exitcode  : 1 (pid: 23019)",
        "  error_file: /tmp/error.json",
        "  traceback : Traceback (most recent call last):",
        '    File "/app/train.py", line 310, in main',
        "      load(path)",
        "  LookupError: no such record",
        "============================================================",
    )

    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("C204", [6])
    assert finding.because[0].row == 11
    assert [(place.file, place.line) for place in finding.where] == [("/app/train.py", 310)]


def test_worker_of_ray_has_the_rank_that_it_was_started_as(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "(Trainable pid=9) - (node_id=4c, ip=10.0.0.4, pid=91) world_rank=0, local_rank=0, x",
        "(Trainable pid=9) - (node_id=7a, ip=10.0.0.5, pid=55) world_rank=1, local_rank=0, x",
        "Traceback (most recent call last):",
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Worker.next() (pid=55, ip=10.0.0.5)",
        '  File "/app/loop.py", line 88, in train_func',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.13 GiB.",
    )

    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("C206", [1])


def test_numbers_in_brackets_are_ranks_where_lines_of_several_mix(tmp_path: Path) -> None:
    (tmp_path / "out.log").write_text(
        "[0] loading\n[1] loading\n[0] step 1\n[1] Traceback (most recent call last):\n"
        '[1]   File "/app/t.py", line 3, in <module>\n[1] LookupError: gone\n'
    )
    (tmp_path / "epochs.log").write_text("[0] loss 3.1\n[1] loss 2.4\n[2] loss 2.2\n")

    evidence = read_evidence(tmp_path)

    assert [item.rank for item in evidence.exceptions] == [1]
    ranks = {file.artifact: file.ranks for file in evidence.logs.files}
    assert ranks == {"out.log": {0, 1}, "epochs.log": frozenset()}


def test_memory_error_that_was_survived_is_no_cause(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "batch size 64 failed: CUDA out of memory. Tried to allocate 1.12 GiB; trying 32",
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/app/tune.py", line 122, in evaluate',
        "[rank1]: KeyError: 17",
    )

    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("C204", [1])


@pytest.mark.parametrize(
    "ending",
    [
        [
            "srun: Terminating StepId=7.0",
            "slurmstepd: error: *** STEP 7.0 ON g1 CANCELLED AT 2026-03-23T13:40:20 ***",
        ],
        ["srun: launch/slurm: _step_signal: Terminating StepId=7.0"],
        [],
    ],
    ids=["cancelled", "signalled", "cut"],
)
def test_step_that_slurm_ends_after_a_failure_was_not_cancelled(
    tmp_path: Path, ending: list[str]
) -> None:
    report = say(
        tmp_path,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.",
        "srun: error: g2: task 5: Out Of Memory",
        *ending,
        "srun: error: g1: tasks 0-3: Terminated",
        "srun: error: g2: tasks 4,6-7: Terminated",
    )

    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("C202", [5])


def test_job_that_slurm_cancels_without_a_reason_was_cancelled_by_somebody(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "slurmstepd: error: *** JOB 9 ON b07 CANCELLED AT 2026-05-15T13:13:35 ***",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: error: b07: tasks 0-3: Terminated",
    )

    finding = first_of(report)

    assert finding.code == "C207"
    assert finding.because[0].row == 1


def test_network_card_belongs_to_its_host_and_to_no_rank(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "[1,9]<stdout>:r12:71:74 [1] NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",
        "[1,1]<stderr>:[rank1]: ncclRemoteError: A call failed possibly due to a network error",
    )

    finding = first_of(report)

    assert finding.code == "C208"
    assert finding.culprits.ranks == []
    assert finding.culprits.nodes == ["r12"]


def test_ends_without_a_reason_name_no_peer(tmp_path: Path) -> None:
    failures = [
        line
        for rank in range(2)
        for line in (
            f"  rank      : {rank} (local_rank: {rank})",
            f"  exitcode  : -6 (pid: {70 + rank})",
            f"  traceback : Signal 6 (SIGABRT) received by PID {70 + rank}",
        )
    ]
    report = say(tmp_path, "Failures:", *failures)

    assert report.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("RuntimeError: NPU out of memory. Tried to allocate 9.28 GiB (NPU 3; 60.97 GiB)", "C206"),
        ("RuntimeError: NPU error, reason=[hbm Multi-bit ECC error]", "C208"),
        ("RuntimeError: level_zero backend failed (UR_RESULT_ERROR_DEVICE_LOST)", "C208"),
        ("RuntimeError: HIP error: an illegal memory access was encountered", "C212"),
        ("ray.exceptions.OutOfMemoryError: Task was killed", "C202"),
    ],
)
def test_exceptions_of_other_devices_are_known(tmp_path: Path, text: str, code: str) -> None:
    report = say(
        tmp_path,
        "[rank0]: step 3 loss 1.1",
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/app/train.py", line 9, in <module>',
        f"[rank3]: {text}",
        "[rank0]: ncclRemoteError: A call failed possibly due to a network error",
    )

    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == (code, [3])


def test_host_that_kubernetes_lost_is_named(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "2026-06-20T10:26:40Z   Normal    NodeNotReady   node/gpu-17   Node gpu-17 status is "
        "now: NodeNotReady",
        "2026-06-20T10:26:41Z   Warning   NodeNotReady   pod/gpt-worker-2   Node is not ready",
        name="events.txt",
    )

    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("C208", [])
    assert finding.culprits.nodes == ["gpu-17"]


def test_error_of_a_loader_worker_is_cited_where_it_stands(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        "[rank4]: Traceback (most recent call last):",
        '[rank4]:   File "/a/main.py", line 91, in <module>',
        "[rank4]: ValueError: Caught ValueError in DataLoader worker process 3.",
        "[rank4]: Original Traceback (most recent call last):",
        '[rank4]:   File "/a/ds.py", line 39, in __getitem__',
        "[rank4]: ValueError: not enough values to unpack (expected 2, got 1)",
        "[rank0]: ncclRemoteError: A call failed possibly due to a network error",
    )

    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("C204", [4])
    assert finding.because[0].row == 6
