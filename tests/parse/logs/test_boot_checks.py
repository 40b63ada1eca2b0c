"""Boot checks of platforms: alone, in any order, cut, mixed with a job's lines, behind prefixes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.parse.logs.jobs import read_files
from tests.read.test_tree import write

from whystuck.evidence.finding import Severity, Verdict
from whystuck.evidence.nodes.checks import CheckResult, Outcome
from whystuck.parse.boot_check import is_boot_check, parse_boot_check
from whystuck.parse.errors import ParseError
from whystuck.pipeline import diagnose_paths
from whystuck.read.sniffing import Kind, sniff

GOOD = """\
2024-05-01 10:00:00 Start to run Bootchecking...
2024-05-01 10:00:01 DiskTest /mnt/data/.gpfs_test: Succeed
2024-05-01 10:00:02 DiskTest /mnt/home/.gpfs_test: Succeed
2024-05-01 10:00:03 /mnt/data RW TEST: 5.9 GB/s 663 MB/s
2024-05-01 10:00:04 /mnt/home RW TEST: 512 MB/s 1.1 GB/s
2024-05-01 10:00:05 GPU Number: 8
2024-05-01 10:00:06 CUDA Version: 12.3
2024-05-01 10:00:07 PyTorch Version: v2.2.0a0+6a974be
2024-05-01 10:00:07 CUDA: Available
2024-05-01 10:00:08 NCCL Version: (2, 19, 3)
2024-05-01 10:00:09 GPU Type: NVIDIA A100-SXM4-40GB
2024-05-01 10:00:37 AllReduce Check: Succeed
2024-05-01 10:00:37 Check Finished.
"""
LATER = """\
2024-05-01 12:00:00 Start to run Troubleshooting...
2024-05-01 12:00:01 DiskTest /mnt/data/.gpfs_test: Succeed
2024-05-01 12:00:02 /mnt/data RW TEST: 5.1 GB/s 601 MB/s
2024-05-01 12:00:03 CUDA: Available
2024-05-01 12:00:04 GPU Number: 1
2024-05-01 12:00:43 NCCL Performance Check: Bus Bandwidth Average: 4.0184 GB/s
2024-05-01 12:00:43 Check Finished, task will be restarted.
"""
BAD = GOOD.replace("/mnt/home/.gpfs_test: Succeed", "/mnt/home/.gpfs_test: Failed: timed out")
STEP = "2024-05-01 10:01:00 step 310 loss 2.31\n"
Key = tuple[str, str, str]


def by_key(results: tuple[CheckResult, ...]) -> dict[Key, CheckResult]:
    return {(one.node, one.name, one.subject): one for one in results}


def parse(text: str) -> dict[Key, CheckResult]:
    return by_key(parse_boot_check(text.encode(), artifact="a"))


def in_log(text: str, name: str = "train.log") -> dict[Key, CheckResult]:
    return by_key(read_files({name: text}).checks)


# ------------------------------------------------------------------------------------------ alone


def test_a_good_one_is_read_with_facts_and_figures() -> None:
    found = parse(GOOD)

    assert {one.outcome for one in found.values()} == {Outcome.OK}
    assert found["", "disk", "/mnt/data"].figures == {"read_mb_per_s": 5900, "write_mb_per_s": 663}
    assert found["", "disk", "/mnt/home"].figures == {"read_mb_per_s": 512, "write_mb_per_s": 1100}
    versions = found["", "versions", ""]
    assert versions.figures == {"devices": 8}
    assert versions.facts == {
        "CUDA": "12.3", "torch": "v2.2.0a0+6a974be", "CUDA is": "Available", "NCCL": "2.19.3",
        "devices": "NVIDIA A100-SXM4-40GB",
    }  # fmt: skip
    assert found["", "allreduce", ""].outcome is Outcome.OK


def test_a_bandwidth_without_a_definition_is_kept_and_not_judged() -> None:
    told = parse(LATER)["", "allreduce", ""]

    assert told.figures == {"told_busbw_gbps": 4.0184}
    assert "n, size and op are not told" in told.facts["bus bandwidth"]
    assert told.problems == ()


@pytest.mark.parametrize("text", [GOOD, LATER, BAD, GOOD + LATER, BAD + LATER])
def test_the_order_of_lines_does_not_count(text: str) -> None:
    expected = parse(text)
    for seed in range(20):
        lines = text.splitlines(keepends=True)
        random.Random(seed).shuffle(lines)

        assert parse("".join(lines)) == expected


def test_the_newest_check_of_each_thing_counts() -> None:
    healed = BAD + GOOD.replace("2024-05-01 10", "2024-05-01 11")

    assert parse(healed)["", "disk", "/mnt/home"].problems == ()
    assert parse(healed)["", "disk", "/mnt/home"].outcome is Outcome.OK


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("DiskTest /a/.t: Failed", "N401", "could not write and read /a"),
        ("DiskTest /a: Timeout", "N401", "could not write and read /a"),
        ("AllReduce Check: Failed", "N419", "of all_reduce failed"),
        ("AllReduce Check: Error: NCCL timed out", "N419", "of all_reduce failed: NCCL timed out"),
        ("GPU Number: 0", "N411", "no device that can be used: GPU Number: 0"),
        ("CUDA: Unavailable", "N411", "no device that can be used: CUDA: Unavailable"),
        ("CUDA: Not Available", "N411", "no device that can be used"),
    ],
)
def test_what_failed_is_a_finding(tmp_path: Path, line: str, code: str, text: str) -> None:
    start = "2024-05-01 10:00:00 Start to run Bootchecking...\n"
    place = write(tmp_path / "boot.log", f"{start}2024-05-01 10:00:01 {line}\n")

    report = diagnose_paths([place])

    (finding,) = report.findings
    assert (finding.code, finding.severity) == (code, Severity.ERROR)
    assert text in finding.summary
    assert finding.because[0].text == line
    assert finding.because[0].artifact == "boot.log"
    assert finding.culprits.ranks == []
    assert report.verdict is Verdict.UNFIT


def test_a_good_one_alone_is_healthy(tmp_path: Path) -> None:
    report = diagnose_paths([write(tmp_path / "fault.log", GOOD)])

    assert (report.verdict, report.findings) == (Verdict.HEALTHY, [])
    assert {row.name for row in report.checks} == {"disk", "versions", "allreduce"}


def test_a_word_that_is_not_known_clears_nothing(tmp_path: Path) -> None:
    text = GOOD.replace("AllReduce Check: Succeed", "AllReduce Check: Skipped")
    report = diagnose_paths([write(tmp_path / "boot.log", text)])

    assert report.verdict is Verdict.INCONCLUSIVE
    assert "it says `Skipped`" in report.gaps[0].reason


@pytest.mark.parametrize("size", range(0, len(GOOD), 97))
def test_one_that_is_cut_is_read_up_to_there(size: int) -> None:
    whole = parse(BAD)
    try:
        found = parse(BAD[:size])
    except ParseError:
        assert "DiskTest" not in BAD[:size].rpartition("\n")[0]
        return

    for key, one in found.items():
        assert key in whole or key[1] == "disk"
        assert not one.problems or one.problems[0].code == "N401"


# ------------------------------------------------------------------------------------ mixed, behind


def test_a_check_before_a_job_is_read_and_the_job_is_too(tmp_path: Path) -> None:
    crash = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: no\n'
    place = write(tmp_path / "train.log", BAD + STEP * 200 + crash)

    report = diagnose_paths([place])

    assert [one.code for one in report.findings] == ["C204", "N401"]
    assert report.verdict is Verdict.CRASHED


@pytest.mark.parametrize("count", [1, 3])
def test_lines_of_a_job_between_are_passed_over(count: int) -> None:
    mixed = "".join(line + STEP * count for line in BAD.splitlines(keepends=True))

    assert in_log(mixed) == {key: _replace(one, "train.log") for key, one in parse(BAD).items()}


def _replace(result: CheckResult, artifact: str) -> CheckResult:
    from msgspec.structs import replace

    return replace(result, artifact=artifact)


PREFIXES = {
    "cri": "2024-05-01T10:00:00.123456789Z stdout F ",
    "pod": "[pod/train-worker-3/pytorch] ",
    "rank": "[rank0]: ",
    "level": "[INFO] ",
    "unknown": "worker-3 >>> ",
    "colour": "\x1b[32m",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_prefixes_of_launchers_and_collectors_are_no_obstacle(tmp_path: Path, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in BAD.splitlines())
    report = diagnose_paths([write(tmp_path / "worker.log", text)])

    (finding,) = report.findings
    assert (finding.code, finding.details["path"]) == ("N401", "/mnt/home")


def test_each_pod_of_a_merged_log_is_judged_by_its_own_lines(tmp_path: Path) -> None:
    lines = [f"[pod/w-0/c] {line}" for line in GOOD.splitlines()]
    lines += [f"[pod/w-1/c] {line}" for line in BAD.splitlines()]
    lines.sort(key=lambda line: line.split("] ")[1])

    (finding,) = diagnose_paths([write(tmp_path / "all.log", "\n".join(lines))]).findings

    assert finding.culprits.nodes == ["w-1"]


# -------------------------------------------------------------------------------------- look-alikes

LOOK_ALIKES = [
    "DiskTest: Failed\n" * 9,
    "INFO running DiskTest /data with 4 threads\n" * 9,
    "2024-05-01 10:00:00 AllReduce Check: Failed\n",  # a job that tests itself
    "2024-05-01 10:00:00 GPU Number: 0\n2024-05-01 10:00:00 CUDA: None\n",
    "print('Start to run Bootchecking...') # then DiskTest /x\n",
    "| NVIDIA-SMI 545.23   Driver Version: 545.23   CUDA Version: 12.3 |\n",
    "PyTorch version: 2.1.0\nCUDA used to build PyTorch: 12.1\nGPU 0: NVIDIA A100\n",
    "2024-05-01 10:00:00 DiskTest /data: Failed to import torch, going on\n" + STEP * 5,
]


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_what_only_looks_like_it_is_none(tmp_path: Path, text: str) -> None:
    assert in_log(text + STEP * 30) == {}
    report = diagnose_paths([write(tmp_path / "train.log", text + STEP * 30)])
    assert report.findings == []


def test_a_file_is_one_under_any_name() -> None:
    assert sniff("anything.bin", GOOD.encode()) is Kind.BOOT_CHECK
    assert is_boot_check(GOOD.encode())
    assert not is_boot_check((GOOD + STEP * 20).encode())


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b"DiskTest /" + b"x" * 9_000_000, STEP.encode() * 5]
)
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse_boot_check(data, artifact="a")


def test_very_many_lines_have_an_end() -> None:
    lines = "".join(
        f"2024-05-01 10:00:00 DiskTest /mnt/{number}: Failed\n" for number in range(20_000)
    )

    assert len(parse(lines)) <= 2000
    assert len(in_log(lines)) <= 2000
