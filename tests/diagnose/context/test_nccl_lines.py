"""N417, N418, N422, N427, N428: what NCCL says of its set-up; never a cause by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.config_logs import REMOTE, tell, trace

from whystuck.diagnose.known_bad import NCCL, find_known_bad, parse_version
from whystuck.evidence.finding import Finding, Report, Severity, Verdict

LOST = REMOTE.partition(", NCCL version")[0]
INFO = "{node}:{pid}:{pid} [0] NCCL INFO {text}\n"
HEALTHY = (
    "Bootstrap : Using eth0:10.0.{n}.5<0>",
    (
        "NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or "
        "directory No plugin found (libnccl-net.so), using internal implementation"
    ),
    "NCCL version 2.27.5+cuda12.8",
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.{n}.5<0>",
    "Using network IB",
    "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
    "NCCL_SOCKET_IFNAME set by environment to eth0",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
)


def info(node: int, *texts: str) -> str:
    lines = (text.replace("{n}", str(node)) for text in texts)
    return "".join(INFO.format(node=f"n{node}", pid=4100 + node, text=text) for text in lines)


def report_of(folder: Path, *logs: tuple[str, ...], failed: bool = False) -> Report:
    files = {}
    for node, texts in enumerate(logs):
        end = trace(LOST, "train.py:96", rank=node) if failed else "step 9 loss 2.0\n"
        files[f"n{node}/rank_{node}.log"] = info(node, *texts) + end
    return tell(folder, files)


def find(report: Report, code: str) -> Finding:
    [finding] = [item for item in report.findings if item.code == code]
    return finding


def change(old: str, *new: str) -> tuple[str, ...]:
    """Return the healthy lines with others in place of one."""
    assert any(old in text for text in HEALTHY)
    return (*(text for text in HEALTHY if old not in text), *new)


@pytest.mark.parametrize("failed", [False, True])
def test_healthy_lines_say_nothing(tmp_path: Path, failed: bool) -> None:
    report = report_of(tmp_path, HEALTHY, HEALTHY, failed=failed)

    assert not {item.code for item in report.findings if item.code.startswith("N")}


def test_sockets_on_one_host_only(tmp_path: Path) -> None:
    slow = change("Using network IB", "NET/IB : No device found.", "Using network Socket")
    finding = find(report_of(tmp_path, HEALTHY, slow, failed=True), "N427")

    assert (finding.details["kind"], finding.culprits.nodes) == ("socket", ["n1"])
    assert "n1 send over sockets, the others over IB: it found no InfiniBand" in finding.summary
    assert finding.severity is Severity.WARNING


def test_sockets_everywhere_with_a_reason(tmp_path: Path) -> None:
    slow = change("Using network IB", "Failed to open libibverbs.so[.1]", "Using network Socket")
    finding = find(report_of(tmp_path, slow, slow), "N427")

    # Nothing failed; a log that somebody asks about is slow.
    assert finding.severity is Severity.WARNING
    assert finding.culprits.nodes == []


def test_hosts_that_used_more_in_another_run_are_no_others(tmp_path: Path) -> None:
    slow = change("Using network IB", "NET/IB : No device found.", "Using network Socket")
    short = ("NET/IB : No device found.",)
    report = report_of(tmp_path, slow, slow, short, (*slow, *HEALTHY))
    finding = find(report, "N427")

    assert finding.culprits.nodes == []
    assert "in another run: it found no InfiniBand" in finding.summary


def test_host_without_devices_is_one_of_those_that_send_over_sockets(tmp_path: Path) -> None:
    slow = change("Using network IB", "NET/IB : No device found.", "Using network Socket")
    short = ("NET/IB : No device found.",)
    finding = find(report_of(tmp_path, slow, HEALTHY, short, HEALTHY), "N427")

    assert finding.culprits.nodes == ["n0", "n2"]


def test_sockets_without_a_sign_of_more_are_fine(tmp_path: Path) -> None:
    plain = change("NET/IB : Using", "Using network Socket")
    plain = tuple(text for text in plain if text != "Using network IB")
    report = report_of(tmp_path, plain, plain, failed=True)

    assert "N427" not in {item.code for item in report.findings}


def test_sockets_on_one_host_are_not_used(tmp_path: Path) -> None:
    slow = change("Using network IB", "NET/IB : No device found.", "Using network Socket")
    report = report_of(tmp_path, slow, failed=True)

    assert "N427" not in {item.code for item in report.findings}


@pytest.mark.parametrize(
    "sign",
    [
        "Channel 00/0 : 7[7] -> 8[0] [receive] via NET/Socket/0",
        "comm 0x55d1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
    ],
)
def test_sockets_of_a_job_of_which_one_host_is_seen(tmp_path: Path, sign: str) -> None:
    slow = (
        *change("Using network IB", "Failed to open libibverbs.so", "Using network Socket"),
        sign,
    )
    finding = find(report_of(tmp_path, slow), "N427")

    assert (finding.details["kind"], finding.severity) == ("socket", Severity.WARNING)


def test_bridge_whose_own_address_is_not_reached(tmp_path: Path) -> None:
    wrong = change("Bootstrap", "Bootstrap : Using virbr0:192.168.122.1<0>")
    error = "NCCL WARN socketStartConnect: Connect to 192.168.122.1<36751> failed : Refused"
    lines = info(0, *wrong) + f"n0:4100:4200 [0] misc/socket.cc:484 {error}\n"
    report = tell(tmp_path, {"n0/rank_0.log": lines + trace(LOST, "train.py:96", rank=0)})

    assert find(report, "N428").details["kind"] == "local"


def test_cards_that_do_not_reach_device_memory(tmp_path: Path) -> None:
    slow = change("GPU Direct", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")
    finding = find(report_of(tmp_path, slow, slow), "N427")

    assert finding.details["kind"] == "no-gpudirect"


@pytest.mark.parametrize("name", ["docker0", "lo", "virbr0", "br-0a1b2c3d"])
def test_interface_that_no_other_host_reaches(tmp_path: Path, name: str) -> None:
    wrong = change("Bootstrap", f"Bootstrap : Using {name}:172.17.0.1<0>")
    finding = find(report_of(tmp_path, HEALTHY, wrong, failed=True), "N428")

    assert (finding.details["kind"], finding.culprits.nodes) == ("local", ["n1"])
    assert name in finding.summary
    assert "NCCL_SOCKET_IFNAME" in " ".join(finding.remedies)


def test_bridge_on_a_single_host_is_fine(tmp_path: Path) -> None:
    wrong = change("Bootstrap", "Bootstrap : Using docker0:172.17.0.1<0>")
    report = report_of(tmp_path, wrong, failed=True)

    assert "N428" not in {item.code for item in report.findings}


def test_one_address_on_two_hosts(tmp_path: Path) -> None:
    wrong = change("Bootstrap", "Bootstrap : Using pub0:192.168.122.1<0>")
    finding = find(report_of(tmp_path, wrong, wrong, failed=True), "N428")

    assert finding.details["kind"] == "shared-address"


def test_interfaces_on_different_networks(tmp_path: Path) -> None:
    wrong = change("Bootstrap", "Bootstrap : Using ib0:192.168.{n}.5<0>")
    finding = find(report_of(tmp_path, HEALTHY, wrong), "N428")

    assert (finding.details["kind"], finding.severity) == ("networks-differ", Severity.NOTE)


def test_blocked_devices(tmp_path: Path) -> None:
    blocked = (*HEALTHY, "P2P is disabled between connected GPUs 0 and 1. You can repress this")
    finding = find(report_of(tmp_path, blocked, HEALTHY), "N422")

    assert (finding.details["pairs"], finding.culprits.nodes) == (["0-1"], ["n0"])
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(("value", "is_told"), [("1", True), ("0", False)])
def test_variable_that_blocks_devices(tmp_path: Path, value: str, *, is_told: bool) -> None:
    told = (*HEALTHY, f"NCCL_P2P_DISABLE set by environment to {value}.")
    report = report_of(tmp_path, told, told)

    assert ("N422" in {item.code for item in report.findings}) == is_told


def test_versions_that_differ(tmp_path: Path) -> None:
    other = change("NCCL version", "NCCL version 2.26.2+cuda12.8")
    finding = find(report_of(tmp_path, HEALTHY, HEALTHY, other, failed=True), "N417")

    assert finding.details["versions"] == {"2.26.2": ["n2"], "2.27.5": ["n0", "n1"]}
    assert finding.culprits.nodes == ["n2"]


def test_version_that_is_known_to_be_bad(tmp_path: Path) -> None:
    bad = change("NCCL version", "NCCL version 2.29.2+cuda13.0")
    finding = find(report_of(tmp_path, bad), "N418")

    assert (finding.details["fixed"], finding.severity) == ("2.29.3", Severity.NOTE)
    assert "2.29.3 has it no more" in finding.summary


@pytest.mark.parametrize(
    ("version", "count"), [("2.18.1", 1), ("2.18.3", 0), ("2.15.5", 1), ("2.27.5", 0), ("x", 0)]
)
def test_table_of_bad_versions(version: str, count: int) -> None:
    assert len(find_known_bad(version)) == count


def test_rows_of_the_table_are_sound() -> None:
    for row in NCCL:
        assert parse_version(row.first) <= parse_version(row.last)
        assert not row.fixed or parse_version(row.fixed) > parse_version(row.last)
        assert row.source.startswith("https://")


def test_notes_are_no_verdict(tmp_path: Path) -> None:
    bad = change("NCCL version", "NCCL version 2.29.2+cuda13.0")
    failed = report_of(tmp_path / "a", bad, HEALTHY, failed=True)
    well = report_of(tmp_path / "b", bad, HEALTHY)

    assert failed.findings[0].code == "C209"
    assert failed.verdict is Verdict.CRASHED
    assert well.verdict not in {Verdict.CRASHED, Verdict.UNFIT, Verdict.STUCK}
