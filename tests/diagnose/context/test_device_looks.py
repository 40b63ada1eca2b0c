"""What NVIDIA's driver told of devices at a stall, and what that adds to verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnose.dumps import SCHEDULED, STARTED, Dumps
from tests.diagnose.scenes import MODULE, Job, at

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence, Finding, Report, Verdict
from whystuck.evidence.nodes.devices import RunningKernel
from whystuck.evidence.table import Table
from whystuck.evidence.traces.tables import RankHeader, TraceSummary
from whystuck.parse.errors import ParseError
from whystuck.parse.node_records import parse_devices

SITE = (at("/job/train.py", 22), MODULE)
Look = dict[str, Any]
IDLE: Look = {"utilization": 0.0, "power": 72, "power_limit": 700}
SPIN: Look = {"utilization": 1.0, "power": 150, "power_limit": 700}
COMPUTE: Look = {"utilization": 1.0, "power": 610, "power_limit": 700}
BETWEEN: Look = {"utilization": 1.0, "power": 360, "power_limit": 700}
LOST: Look = {"is_lost": True}


def device(rank: int, *looks: Look, **more: Any) -> dict[str, Any]:
    looks = looks if len(looks) > 1 else looks * 2
    return {"index": str(rank), "uuid": f"GPU-{rank}", "ranks": [rank], "looks": looks} | more


def encode(*devices: dict[str, Any]) -> bytes:
    return json.dumps({"node": "n0", "taken_ns": 7, "devices": devices}).encode()


def judge(folder: Path, *devices: dict[str, Any], **more: Any) -> Report:
    """Judge a stall in which all four ranks have issued an op that does not end."""
    dumps = Dumps()
    extra: dict[str, Any] = {"time_discovered_started_ns": None}
    if more.pop("timing", False):
        extra = {}
    for _ in range(5):
        dumps.op(range(4), "all_reduce", SITE, **extra)
    dumps.op(range(4), "all_reduce", SITE, state=more.pop("state", SCHEDULED))
    job = Job().of_kind("stall")
    for rank in range(4):
        job.stands(rank, SITE, cpu_share=1.0)
    told = parse_devices(encode(*devices), artifact="n0/devices.json")
    return diagnose(replace(dumps.evidence(folder, job), devices=told))


def first(report: Report, code: str = "H122") -> Finding:
    assert report.findings[0].code == code
    return report.findings[0]


def cited(finding: Finding) -> list[tuple[str, int | None]]:
    return [(one.text, one.row) for one in finding.because if one.artifact == "n0/devices.json"]


def test_device_that_alone_computes_is_named(tmp_path: Path) -> None:
    devices = [device(rank, COMPUTE if rank == 2 else SPIN) for rank in range(4)]
    finding = first(judge(tmp_path, *devices))

    assert finding.culprits.ranks == [2]
    assert finding.confidence is Confidence.POSSIBLE
    assert "the device of rank 2 computes, while those of the others spin" in finding.summary
    assert finding.details["devices"] == {"spinning": "0-1,3", "computing": "2"}
    assert cited(finding)[0] == ("device 2 of rank 2: load 100 %, 610 of 700 W", 2)
    assert "kernel of your own" in finding.remedies[0]


def test_device_that_computes_by_power_and_units_is_likely(tmp_path: Path) -> None:
    units = [COMPUTE, COMPUTE | {"sm_active": 0.9}]
    devices = [device(0, *units), *(device(rank, SPIN) for rank in (1, 2, 3))]
    finding = first(judge(tmp_path, *devices))

    assert (finding.culprits.ranks, finding.confidence) == ([0], Confidence.LIKELY)


def test_owner_by_environment_is_no_proof(tmp_path: Path) -> None:
    units = [COMPUTE, COMPUTE | {"sm_active": 0.9}]
    odd = device(0, *units, is_guessed=True)
    finding = first(judge(tmp_path, odd, *(device(rank, SPIN) for rank in (1, 2, 3))))

    assert (finding.culprits.ranks, finding.confidence) == ([0], Confidence.POSSIBLE)
    assert cited(finding)[0][0].startswith("device 0 of rank 0 (by its environment): load 100 %")


def test_device_on_which_nothing_runs_is_named(tmp_path: Path) -> None:
    devices = [device(rank, IDLE if rank == 1 else SPIN) for rank in range(4)]
    finding = first(judge(tmp_path, *devices))

    assert (finding.culprits.ranks, finding.confidence) == ([1], Confidence.POSSIBLE)
    assert "the device of rank 1 runs nothing" in finding.summary


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (SPIN, "(all devices spin, as a kernel does that waits)"),
        (IDLE, "(no device runs anything)"),
        (COMPUTE, "a device or the network is to blame"),
    ],
)
def test_devices_that_all_do_the_same_name_nobody(look: Look, words: str, tmp_path: Path) -> None:
    finding = first(judge(tmp_path, *(device(rank, look) for rank in range(4))))

    assert (finding.culprits.ranks, finding.confidence) == ([], Confidence.POSSIBLE)
    assert words in finding.summary
    assert "--fr-enable-timing" in finding.remedies[0]
    assert len(cited(finding)) == 4


@pytest.mark.parametrize(
    "looks",
    [
        [COMPUTE, COMPUTE, SPIN, SPIN],
        [COMPUTE, IDLE, SPIN, SPIN],
        [COMPUTE, BETWEEN, SPIN, SPIN],
        [{"utilization": 1.0}, SPIN, SPIN, SPIN],
        [COMPUTE | {"utilization": 0.5}, SPIN, SPIN, SPIN],
        [COMPUTE, SPIN, SPIN],
        [],
    ],
)
def test_devices_that_tell_too_little_name_nobody(looks: list[Look], tmp_path: Path) -> None:
    finding = first(judge(tmp_path, *(device(rank, look) for rank, look in enumerate(looks))))

    assert (finding.culprits.ranks, finding.confidence) == ([], Confidence.POSSIBLE)


def test_looks_that_differ_or_a_shared_device_name_nobody(tmp_path: Path) -> None:
    others = [device(rank, SPIN) for rank in (2, 3)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    moving = first(judge(tmp_path / "a", device(0, SPIN, COMPUTE), device(1, SPIN), *others))
    shared = first(judge(tmp_path / "b", device(0, COMPUTE, ranks=[0, 1]), *others))

    assert moving.culprits.ranks == shared.culprits.ranks == []


def test_op_that_all_devices_began_is_not_blamed_on_one_that_computes(tmp_path: Path) -> None:
    devices = [device(rank, COMPUTE if rank == 2 else SPIN) for rank in range(4)]
    finding = first(judge(tmp_path, *devices, state=STARTED, timing=True))

    assert (finding.culprits.ranks, finding.confidence) == ([], Confidence.LIKELY)
    assert cited(finding)


@pytest.mark.parametrize(
    ("looks", "kind", "xid"),
    [
        ([SPIN, LOST], "gpu_lost", None),
        ([SPIN, SPIN | {"xid_errors": 1, "last_xid": 79}], "gpu_xid", 79),
        ([SPIN | {"ecc_uncorrected": 1}, SPIN | {"ecc_uncorrected": 2}], "gpu_memory", None),
    ],
)
def test_device_that_failed_is_broken_hardware(
    looks: list[Look], kind: str, xid: int | None, tmp_path: Path
) -> None:
    devices = [device(rank, SPIN) for rank in (0, 1, 2)]
    report = judge(tmp_path, *devices, device(3, *looks))
    finding = first(report, "C208")

    assert (finding.culprits.ranks, finding.culprits.nodes) == ([3], ["n0"])
    assert finding.confidence is Confidence.LIKELY
    assert (finding.details["kind"], finding.details.get("xid")) == (kind, xid)
    assert cited(finding)[0][1] == 3
    assert report.verdict is Verdict.CRASHED


XID = "NVRM: Xid (PCI:0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize("time", ["2026-09-21T14:13:15", "2026-09-21T13:43:15"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_xid_before_the_looks_is_led_to_its_rank(
    time: str, tmp_path: Path, *, is_lost: bool
) -> None:
    (tmp_path / "kernel.log").write_text(f"{time}.000000+00:00 n0 kernel: {XID}\n")
    known = [device(rank, SPIN, bus=f"00000000:9{rank:X}:00.0") for rank in range(3)]
    # The driver does not tell the bus of a device that it has lost.
    last = device(3, LOST) if is_lost else device(3, SPIN, bus="00000000:9D:00.0")
    report = judge(tmp_path, *known, last)
    finding = first(report, "C208")

    assert (finding.culprits.ranks, finding.culprits.nodes) == ([3], ["n0"])
    assert (finding.details["xid"], finding.details["device"]) == (79, "0000:9d:00")
    assert any("fallen off the bus" in one.text for one in finding.because)


def test_bus_of_a_device_that_is_guessed_leads_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "kernel.log").write_text(f"2026-09-21T14:13:15.000000+00:00 n0 kernel: {XID}\n")
    devices = [
        device(rank, SPIN, bus=f"00000000:9{rank + 10:X}:00.0", is_guessed=True)
        for rank in range(4)
    ]
    report = judge(tmp_path, *devices)

    assert all(one.culprits.ranks == [] for one in report.findings if one.code == "C208")


@pytest.mark.parametrize(
    "look",
    [
        SPIN | {"ecc_uncorrected": 5, "row_remap_failed": True},
        SPIN | {"xid_errors": 1, "last_xid": 31},
        SPIN | {"xid_errors": 0, "last_xid": 79},
    ],
)
def test_old_errors_and_those_of_programs_are_no_broken_hardware(
    look: Look, tmp_path: Path
) -> None:
    report = judge(tmp_path, device(0, look), *(device(rank, SPIN) for rank in (1, 2, 3)))

    assert [item.code for item in report.findings] == ["H122"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"devices": 3}',
        b'{"devices": [{"ranks": [-1]}]}',
        b'{"devices": [{"ranks": [99999999999999999999]}]}',
        b'{"devices": [{"looks": [{"utilization": 1.5}]}]}',
        b'{"devices": [{"looks": [{"utilization": NaN}]}]}',
        b'{"devices": [{"looks": [{"power": 1e999}]}]}',
        b'{"devices": [{"looks": [{"power": -1}]}]}',
        b'{"devices": [{"looks": [{"last_xid": 100000000}]}]}',
        b'{"devices": [{"index": "%s"}]}' % (b"x" * 200),
        b'{"devices": [%s]}' % b",".join([b"{}"] * 1025),
        b'{"devices": [{"looks": [%s]}]}' % b",".join([b"{}"] * 9),
        b'{"devices": [{"ranks": [%s]}]}' % b",".join([b"1"] * 1025),
        b'{"devices": [' * 5000,
    ],
)
def test_hostile_files_are_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse_devices(data, artifact="n0/devices.json")


def test_devices_of_nobody_and_without_looks_are_read(tmp_path: Path) -> None:
    report = judge(tmp_path, {}, {"index": "\x1b[2J"}, device(0), {"looks": [{}], "ranks": [1]})

    assert first(report).details["devices"] == {"unknown": "0-1"}


def traced(folder: Path, open_s: float, *, begins_s: float = -5) -> Finding:
    """Judge a stall with a trace of rank 2, with times before the pending op of that rank."""
    dumps = Dumps()
    for _ in range(5):
        dumps.op(range(4), "all_reduce", SITE, time_discovered_started_ns=None)
    dumps.op(range(4), "all_reduce", SITE, state=SCHEDULED)
    op_ns = dumps.entries[2][-1]["time_created_ns"]
    header = RankHeader(
        artifact="trace.json",
        rank=2,
        started_ns=op_ns + int(begins_s * 1e9),
        ended_ns=op_ns + 20_000_000_000,
    )
    names = ("rank", "name", "end_ns", "open_count", "open_api", "open_op", "open_ns")
    row = (2, "gemm", op_ns - 2_000_000_000, 3, "cudaLaunchKernel", "my::spin",
           op_ns - int(open_s * 1e9))  # fmt: skip
    columns = {name: np.array([value]) for name, value in zip(names, row, strict=True)}
    traces = TraceSummary(ranks=(header,), tables={"unfinished": Table(columns)})
    evidence = replace(dumps.evidence(folder, Job().of_kind("stall")), traces=traces)
    return first(diagnose(evidence))


def test_trace_that_covers_the_stall_names_what_did_not_end_before_the_op(tmp_path: Path) -> None:
    finding = traced(tmp_path, 1.5)
    (told,) = (one.text for one in finding.because if one.artifact == "trace.json")

    assert finding.details["before"] == {"2": "my::spin"}
    assert told == (
        "the last work in the trace of rank 2 is gemm, which ended 2 s before the op was issued; "
        "what my::spin launched 1.5 s before the op did not end in it"
    )
    assert finding.confidence is Confidence.POSSIBLE


def test_launch_of_the_op_itself_is_nothing_before_it(tmp_path: Path) -> None:
    assert "before" not in traced(tmp_path, -0.001).details


def test_trace_that_began_after_the_op_tells_nothing(tmp_path: Path) -> None:
    finding = traced(tmp_path, 1.5, begins_s=1)

    assert all(one.artifact != "trace.json" for one in finding.because)


def dumped(folder: Path, *names: str) -> Finding:
    """Judge a stall with a dump of the device of rank 2."""
    dumps = Dumps()
    for _ in range(5):
        dumps.op(range(4), "all_reduce", SITE, time_discovered_started_ns=None)
    dumps.op(range(4), "all_reduce", SITE, state=SCHEDULED)
    kernels = tuple(
        RunningKernel(2, 0, name, "Active", "n0/rank-2/gpu-kernels.txt", row)
        for row, name in enumerate(names)
    )
    return first(diagnose(replace(dumps.evidence(folder, Job().of_kind("stall")), kernels=kernels)))


def test_kernel_of_the_user_on_a_dumped_device_is_named(tmp_path: Path) -> None:
    finding = dumped(tmp_path, "ncclDevKernel_AllReduce_Sum", "void spin<float>")

    assert "; the device of rank 2 runs void spin<float>" in finding.summary
    assert finding.details["kernels"] == {"2": "void spin<float>"}
    assert ("n0/rank-2/gpu-kernels.txt", 1) in [(one.artifact, one.row) for one in finding.because]
    assert finding.culprits.ranks == []


def test_kernel_of_nccl_alone_on_a_dumped_device_is_cited(tmp_path: Path) -> None:
    finding = dumped(tmp_path, "ncclDevKernel_AllReduce_Sum")

    assert "the device of rank 2 runs" not in finding.summary
    assert finding.details["kernels"] == {"2": "ncclDevKernel_AllReduce_Sum"}
