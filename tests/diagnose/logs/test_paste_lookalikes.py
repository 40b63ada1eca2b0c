"""What looks like the families of pastes, and must name nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.test_paste_families import (
    FLUSH,
    MESH,
    NPU,
    SEL,
    TRACE,
    find_first,
    label,
    lack,
    show_bar,
)
from tests.logs.test_told import say

_SMI = "INFO Reason: the loss was lower, Message: none"
_NOTHING = (
    ("spot", ("INFO spot price of ip-10-2 changed", "node/gpu-7 Normal SpotAvailable")),
    ("sel", ("$ ssh n7 ipmitool sel elist", SEL.format("DIMM", "Correctable ECC"))),
    ("sel-gone", (SEL.format("DIMM", "Uncorrectable ECC").replace("Asserted", "Deasserted"),)),
    ("debugger", ("> /app/step.py(21)fit()", "see (Pdb) in the documentation", "(Pdb) ")),
    ("download", (show_bar("model-00003-of-00004.safetensors", 13),)),
    ("sdc", ("INFO no silent data corruption was found on rank 3", "GPU 5: OK")),
    ("hosts", ("127.0.0.1       STREAM localhost", "127.0.1.1 rex")),
    ("flushes", (FLUSH.format(1), "| cudaMalloc retries: 0 | num_alloc_retries: 2")),
    ("device", ("[drm] i915 0000:3a:00.0: GuC firmware loaded", "Device is not wedged")),
    ("reason", (_SMI, "    Reason: fine", "    Message: all good")),
)


@pytest.mark.parametrize(("name", "lines"), _NOTHING, ids=[name for name, _ in _NOTHING])
def test_look_alikes_tell_nothing(tmp_path: Path, name: str, lines: tuple[str, ...]) -> None:
    report = say(tmp_path, "step 10 loss 2.1", *lines, "step 11 loss 2.0")

    assert report.findings == [], name


def test_epochs_and_steps_are_no_workers(tmp_path: Path) -> None:
    steps = [f"it{number} loss 2.{number}" for number in (0, 1, 2, 3, 0, 1, 2, 3)]

    report = say(tmp_path, *steps, *label("it2 ", *TRACE), "it1 done")

    assert not any(finding.culprits.ranks for finding in report.findings)


def test_two_sides_of_horovod_blame_nobody(tmp_path: Path) -> None:
    lines = [lack(0, "a"), lack(1, "a"), lack(2, "b"), lack(3, "b")]

    assert find_first(tmp_path, *lines).culprits.ranks == []


def test_device_of_one_process_alone_is_of_nobody(tmp_path: Path) -> None:
    lines = (*TRACE[:3], NPU.replace("NPU 6", "NPU 0"))
    other = "[ERROR] 2025-04-10-03:28:17 (PID:21400, Device:0, RankID:8) ERR02200 DIST call failed."

    assert find_first(tmp_path, *lines, other).culprits.ranks == []


def test_peer_on_the_same_host_may_have_a_loopback_address(tmp_path: Path) -> None:
    finding = find_first(tmp_path, MESH.format(0, "127.0.0.1", "127.0.0.1") + "0")

    assert "gave the others" not in finding.summary
