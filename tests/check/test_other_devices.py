"""Devices of AMD, its package on a stand-in for the library, and of Huawei, as npu-smi prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.metrics.gpu.amd_library import build_amd_library
from tests.agent.metrics.gpu.npu_outputs import ONE_CHIP, TWO_DIES
from tests.check.checking import check_devices, find, write_tree

from whystuck.evidence.nodes.checks import CheckResult, Outcome

SOURCE = Path(__file__).with_name("stand_in_amd.c")


# ------------------------------------------------------------------------------------------- AMD


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_amd_library(SOURCE, tmp_path_factory.mktemp("amd"))


class AmdNode:
    """A node with two devices of AMD, of which tests break one."""

    def __init__(self, library: Path, root: Path, devices: int = 2) -> None:
        files = {f"dev/dri/renderD{128 + number}": "" for number in range(devices)}
        files |= {
            f"sys/class/drm/renderD{128 + number}/device/vendor": "0x1002\n"
            for number in range(devices)
        }
        self.root, self.library = write_tree(root, files | {"dev/dri/card0": ""}), library

    def check(
        self, faults: str = "", *, deadline_s: float = 60.0, **more: str
    ) -> dict[str, CheckResult]:
        known = {"LD_LIBRARY_PATH": str(self.library), "STAND_IN_FAULTS": faults}
        return check_devices(self.root, known | more, deadline_s=deadline_s)


@pytest.fixture
def amd(library: Path, tmp_path: Path) -> AmdNode:
    return AmdNode(library, tmp_path)


def test_good_devices_of_amd_pass_with_facts(amd: AmdNode) -> None:
    found = amd.check()

    assert {one.outcome for one in found.values()} == {Outcome.OK}, found
    assert found["device"].facts["1"] == "AMD Instinct MI300X, 206 GB"
    assert found["device"].figures == {"devices": 2}
    assert found["pcie"].facts["0"] == "x16 of x16"
    assert found["link"].facts["0"] == "7 links up"
    assert found["p2p"].facts["0"] == "reaches 1 of 1 other devices"


AMD_FAULTS: list[tuple[str, str, str, str, str]] = [
    ("lost:1=1", "device", "N411", "error", "device 1 is lost"),
    ("ecc:1=3", "device", "N412", "error", "device 1 had 3 errors of memory"),
    ("page:0=2", "device", "N412", "error", "1 pages of the memory of device 0 could not be"),
    ("page:0=1", "device", "N412", "warning", "of device 0 wait for a reset to be retired"),
    ("heat:1=97", "device", "N413", "warning", "device 1 is held back by 97 °C, above 90"),
    ("user:0=20480", "device", "N414", "warning", "holds 20480 MiB of device 0, more than 512"),
    ("width:1=8", "pcie", "N415", "warning", "of x8, and could have x16"),
    ("replays:0=5000", "pcie", "N415", "warning", "repeated 5000 packets"),
    ("down:1=2", "link", "N416", "error", "device 1 has 5 links of XGMI up, 2 are down"),
]


def test_a_device_of_amd_that_reaches_no_other_is_named(amd: AmdNode) -> None:
    found = amd.check("p2p:3=0", STAND_IN_DEVICES="4")["p2p"]

    assert find([found], "N422").summary == (
        "device 3 reaches no other device directly (the driver refuses it), and others do"
    )


@pytest.mark.parametrize(("fault", "name", "code", "severity", "text"), AMD_FAULTS)
def test_a_fault_of_a_device_of_amd_is_named(
    amd: AmdNode, fault: str, name: str, code: str, severity: str, text: str
) -> None:
    found = amd.check(fault)
    finding = find([found[name]], code)

    assert finding.severity.value == severity
    assert text in finding.summary
    others = [one for key, one in found.items() if key != name]
    assert not [one for one in others if one.problems], found


def test_fewer_devices_of_amd_than_files_are_missing(library: Path, tmp_path: Path) -> None:
    node = AmdNode(library, tmp_path, devices=8)
    finding = find([node.check(STAND_IN_DEVICES="7")["device"]], "N411")

    assert finding.summary == "1 of 8 devices are missing: the driver tells 7"


def test_a_driver_of_amd_that_is_not_loaded_is_told(amd: AmdNode) -> None:
    finding = find([amd.check(STAND_IN_NO_DRIVER="1")["device"]], "N411")

    assert "this node has devices of AMD, and AMD's driver cannot be asked" in finding.summary
    assert "--device /dev/kfd" in finding.remedies[1]


@pytest.mark.slow
def test_a_driver_of_amd_that_hangs_is_told_and_hangs_nobody(amd: AmdNode) -> None:
    finding = find([amd.check("hang:1=1", deadline_s=8.0)["device"]], "N412")

    assert finding.summary == "AMD's driver does not answer within 8 s"


# ------------------------------------------------------------------------------------------ Huawei

ECC = """\
        NPU ID                                   : {npu}
        Chip Count                               : 1

        HBM Single Bit Error Count               : 12
        HBM Double Bit Error Count               : {errors}
        HBM Single Bit Aggregate Total Err Cnt   : 12
        HBM Double Bit Aggregate Total Err Cnt   : {errors}
        HBM Single Bit Isolated Pages Count      : 0
        HBM Double Bit Isolated Pages Count      : {pages}
        Chip ID                                  : 0
"""
GOOD = ONE_CHIP.replace("Warning", "OK     ").replace("38342", "  256").format(pid=4711)
TOOL = """#!/bin/sh
[ -e "{folder}/hangs" ] && exec sleep 600
[ "$2" = -t ] && exec cat "{folder}/ecc-$5"
cat "{folder}/info"
"""


def npu_node(folder: Path, table: str, *, errors: int = 0, pages: int = 0, files: int = 2) -> Path:
    """A node whose npu-smi prints a table, and errors of memory of NPU 12."""
    tools = folder / "tools"
    texts = {
        "npu-smi": TOOL.format(folder=tools),
        "info": table,
        "ecc-4": ECC.format(npu=4, errors=0, pages=0),
        "ecc-12": ECC.format(npu=12, errors=errors, pages=pages),
        "ecc-0": ECC.format(npu=0, errors=0, pages=0),
    }
    write_tree(tools, texts)
    (tools / "npu-smi").chmod(0o755)
    return write_tree(folder / "root", {f"dev/davinci{number}": "" for number in range(files)})


def check_npus(tmp_path: Path, root: Path, deadline_s: float = 60.0) -> dict[str, CheckResult]:
    path = f"{tmp_path / 'tools'}:/usr/bin:/bin"
    return check_devices(root, {"PATH": path}, deadline_s=deadline_s)


def check_with_path(tmp_path: Path, table: str, **what: int) -> dict[str, CheckResult]:
    return check_npus(tmp_path, npu_node(tmp_path, table, **what))


def test_good_devices_of_huawei_pass_with_facts(tmp_path: Path) -> None:
    found = check_with_path(tmp_path, GOOD)

    assert found["device"].outcome is Outcome.OK, found
    assert found["device"].facts == {"4": "910B3, 69 GB", "12": "910B3, 69 GB"}
    assert (found["pcie"].outcome, found["link"].outcome) == (Outcome.SKIPPED, Outcome.SKIPPED)
    assert found["pcie"].reason == "the driver does not tell the width of PCI Express"
    assert found["link"].reason == "the devices have no HCCS, or none is up"


def test_errors_of_memory_of_huawei_are_named(tmp_path: Path) -> None:
    finding = find([check_with_path(tmp_path, GOOD, errors=3)["device"]], "N412")

    assert finding.summary == "device 12 had 3 errors of memory that were not corrected"
    assert finding.because[0].text == "npu-smi info -t ecc -i 12"
    assert finding.severity.value == "error"


def test_retired_pages_of_huawei_are_told(tmp_path: Path) -> None:
    finding = find([check_with_path(tmp_path, GOOD, pages=70)["device"]], "N412")

    assert "70 pages of the memory of device 12 are retired" in finding.summary
    assert finding.severity.value == "warning"


def test_bad_health_and_a_user_of_huawei_are_named(tmp_path: Path) -> None:
    found = check_with_path(tmp_path, ONE_CHIP.format(pid=4711))
    health = find([found["device"]], "N412")
    user = find([found["device"]], "N414")

    assert health.summary == "npu-smi calls the health of device 12 Warning"
    assert user.summary.startswith("process 4711 (")
    assert "38342 MiB of device 4" in user.summary


def test_a_critical_chip_of_two_is_an_error(tmp_path: Path) -> None:
    finding = find([check_with_path(tmp_path, TWO_DIES)["device"]], "N412")

    assert finding.summary == "npu-smi calls the health of device 1 Critical"
    assert finding.severity.value == "error"


def test_fewer_chips_than_files_are_missing(tmp_path: Path) -> None:
    finding = find([check_with_path(tmp_path, GOOD, files=8)["device"]], "N411")

    assert finding.summary == "6 of 8 devices are missing: the driver tells 2"


def test_a_node_of_huawei_without_the_tool_is_skipped_and_says_so(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "root", {"dev/davinci0": ""})
    found = check_npus(tmp_path, root)

    assert found["device"].outcome is Outcome.SKIPPED
    assert found["device"].reason == "npu-smi is not installed"


@pytest.mark.slow
def test_a_tool_of_huawei_that_hangs_is_told_and_hangs_nobody(tmp_path: Path) -> None:
    root = npu_node(tmp_path, GOOD)
    (tmp_path / "tools/hangs").touch()
    finding = find([check_npus(tmp_path, root)["device"]], "N411")

    assert "npu-smi does not answer: it takes too long" in finding.summary
