"""Devices of NVIDIA: the vendor's own package on a library that stands in for the driver."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.check.checking import check_devices, find, write_tree

from whystuck.evidence.finding import Confidence
from whystuck.evidence.nodes.checks import CheckResult, Outcome

SOURCE = Path(__file__).with_name("stand_in_nvml.c")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stand-in for ``libnvidia-ml.so.1``."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build a stand-in for NVIDIA's library")
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


class Node:
    """A node with two devices, of which tests break one."""

    def __init__(self, driver: Path, root: Path, devices: int = 2) -> None:
        self.driver = driver
        self.root = write_tree(root, {f"dev/nvidia{number}": "" for number in range(devices)})

    def check(
        self, faults: str = "", *, count: int = 0, deadline_s: float = 30.0, **variables: str
    ) -> dict[str, CheckResult]:
        """Make the checks of devices; they are told by name."""
        known = {"LD_LIBRARY_PATH": str(self.driver), "STAND_IN_FAULTS": faults}
        return check_devices(self.root, known | variables, count=count, deadline_s=deadline_s)


@pytest.fixture
def node(driver: Path, tmp_path: Path) -> Node:
    return Node(driver, tmp_path)


def test_good_devices_pass_with_facts(node: Node) -> None:
    found = node.check()

    assert {one.outcome for one in found.values()} == {Outcome.OK}, found
    assert found["device"].facts["1"] == "NVIDIA H100 80GB HBM3, 80 GB"
    assert found["pcie"].facts["0"] == "x16 of x16"
    assert found["link"].facts["0"] == "18 links up"
    assert found["p2p"].facts["0"] == "reaches 1 of 1 other devices"


def test_a_node_without_devices_is_skipped(tmp_path: Path) -> None:
    found = Node(tmp_path / "no driver", tmp_path, devices=0).check()

    assert {one.outcome for one in found.values()} == {Outcome.SKIPPED}
    assert found["device"].reason == "this node has no device of NVIDIA, AMD or Huawei"


FAULTS: list[tuple[str, str, str, str, str]] = [
    ("lost:1=1", "device", "N411", "error", "device 1 is lost"),
    ("recovery:1=1", "device", "N412", "error", "driver of device 1 asks for a reset"),
    (
        "recovery:0=2",
        "device",
        "N412",
        "error",
        "driver of device 0 asks for a restart of the node",
    ),
    ("ecc:1=3", "device", "N412", "error", "device 1 had 3 errors of memory"),
    ("failed:0=1", "device", "N412", "error", "device 0 could not be remapped"),
    ("pending:0=1", "device", "N412", "warning", "device 0 wait for a reset to be remapped"),
    ("reasons:1=64", "device", "N413", "warning", "held back by the hardware's limit of heat"),
    ("heat:1=97", "device", "N413", "warning", "device 1 is held back by 97 °C, above 90"),
    ("user:0=20480", "device", "N414", "warning", "holds 20480 MiB of device 0, more than 512"),
    ("width:1=8", "pcie", "N415", "warning", "of x8, and could have x16"),
    ("replays:0=5000", "pcie", "N415", "warning", "repeated 5000 packets"),
    (
        "p2p:1=4",
        "p2p",
        "N422",
        "warning",
        "direct access is switched off in the driver between devices 0-1",
    ),
    ("links:1=12", "link", "N416", "error", "device 1 has 12 links of NVLink up, others 18"),
]


@pytest.mark.parametrize(("fault", "name", "code", "severity", "text"), FAULTS)
def test_a_fault_of_a_device_is_named(
    node: Node, fault: str, name: str, code: str, severity: str, text: str
) -> None:
    found = node.check(fault)
    finding = find([found[name]], code)

    assert finding.severity.value == severity
    assert text in finding.summary
    others = [one for key, one in found.items() if key != name]
    assert not [one for one in others if one.problems], found


def test_a_device_that_reaches_no_other_is_named_where_others_do(node: Node) -> None:
    found = node.check("p2p:2=5", STAND_IN_DEVICES="4")["p2p"]

    finding = find([found], "N422")
    assert finding.summary == (
        "device 2 reaches no other device directly (it is not supported), and others do"
    )
    assert finding.confidence is Confidence.POSSIBLE
    assert found.facts["0"] == "reaches 2 of 3 other devices"


def test_devices_of_which_none_can_reach_another_are_well(node: Node) -> None:
    found = node.check("p2p:0=2,p2p:1=2")["p2p"]

    assert (found.outcome, found.problems) == (Outcome.OK, ())
    assert found.facts["1"] == "reaches 0 of 1 other devices"


def test_one_device_has_none_to_reach(node: Node) -> None:
    found = node.check(STAND_IN_DEVICES="1")["p2p"]

    assert (found.outcome, found.reason) == (Outcome.SKIPPED, "there is one device")


def test_a_small_user_of_a_device_is_no_problem(node: Node) -> None:
    assert node.check("user:0=64")["device"].outcome is Outcome.OK


@pytest.mark.parametrize("count", [0, 8])
def test_fewer_devices_than_files_or_the_policy_wants_are_missing(
    driver: Path, tmp_path: Path, count: int
) -> None:
    node = Node(driver, tmp_path, devices=8)
    finding = find([node.check(count=count, STAND_IN_DEVICES="7")["device"]], "N411")

    assert finding.summary == "1 of 8 devices are missing: the driver tells 7"
    assert finding.measures == {"devices": 7, "threshold": 8}


def test_a_driver_that_is_not_loaded_is_told(node: Node) -> None:
    finding = find([node.check(STAND_IN_NO_DRIVER="1")["device"]], "N411")

    assert "this node has devices of NVIDIA, and NVIDIA's driver cannot be asked" in finding.summary


@pytest.mark.slow
def test_a_driver_that_hangs_is_told_and_hangs_nobody(node: Node) -> None:
    found: dict[str, Any] = node.check("hang:1=1", deadline_s=3.0)
    finding = find([found["device"]], "N412")

    assert finding.severity.value == "error"
    assert finding.summary == "NVIDIA's driver does not answer within 3 s"
