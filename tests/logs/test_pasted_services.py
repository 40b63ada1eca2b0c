"""Fabric managers that do not run, as systemd tells it, beside processes that find no device."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

UNREADY = (
    "RuntimeError: Unexpected error from NumCudaDevices(). Error 802: system not yet initialized"
)
UNIT = "nvidia-fabricmanager.service - NVIDIA fabric manager service"
LOADED = "     Loaded: loaded (/lib/systemd/system/nvidia-fabricmanager.service; disabled)"
OFF = {
    "failed": [
        "$ sudo systemctl status nvidia-fabricmanager",
        f"\u00d7 {UNIT}",
        LOADED,
        "     Active: failed (Result: exit-code) since Mon 2025-03-03 07:12:51 UTC; 1h 4min ago",
    ],
    "old": [
        f"\u25cf {UNIT}",
        "   Loaded: loaded (/lib/systemd/system/nvidia-fabricmanager.service; enabled)",
        "   Active: failed (Result: core-dump) since Tue 2025-03-04 01:00:09 CET; 3min ago",
    ],
    "dead": [f"\u25cb {UNIT}", LOADED, "     Active: inactive (dead)"],
    "asked": ["$ systemctl is-active nvidia-fabricmanager", "inactive"],
    "listed": ["\u25cf nvidia-fabricmanager.service loaded failed failed NVIDIA fabric manager"],
    "journal": [
        "Mar 03 07:12:51 hx-5 systemd[1]: nvidia-fabricmanager.service: Failed with result",
        "Mar 03 07:12:51 hx-5 systemd[1]: Failed to start NVIDIA fabric manager service.",
    ],
    "absent": [
        "$ systemctl status nvidia-fabricmanager",
        "Unit nvidia-fabricmanager.service could not be found.",
    ],
}
ON = [f"\u25cf {UNIT}", LOADED, "     Active: active (running) since Mon 2025-03-03 09:00:00 UTC"]


@pytest.mark.parametrize("shown", OFF)
@pytest.mark.parametrize("is_first", [True, False])
def test_fabric_manager_that_does_not_run_is_a_mistake_of_the_host(
    tmp_path: Path, shown: str, *, is_first: bool
) -> None:
    lines = [*OFF[shown], UNREADY] if is_first else [UNREADY, *OFF[shown]]
    report = say(tmp_path, *lines)

    assert [one.code for one in report.findings if one.severity != "note"] == ["C210"]
    assert "fabric manager" in first_of(report).summary
    assert first_of(report).culprits.nodes == (["hx-5"] if shown == "journal" else [])


def test_host_of_the_prompt_is_named(tmp_path: Path) -> None:
    head, *rest = OFF["failed"]
    lines = [head.replace("$ sudo", "root@hx-8:~# sudo"), *rest, f"hx-8: {UNREADY}"]
    report = say(tmp_path, *lines, "hx-8: starting", "hx-8: 8 workers")

    assert (first_of(report).code, first_of(report).culprits.nodes) == ("C210", ["hx-8"])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(ON, id="runs"),
        pytest.param([*OFF["failed"], "$ sudo systemctl restart it", *ON], id="again"),
        pytest.param(
            [f"\u25cf {UNIT}", "\u25cb nvidia-mig.service - MIG", "   Active: inactive (dead)"],
            id="other",
        ),
        pytest.param(["see `systemctl status nvidia-fabricmanager`"], id="hint"),
    ],
)
def test_other_states_leave_it_open_why_devices_are_not_ready(
    tmp_path: Path, lines: list[str]
) -> None:
    assert first_of(say(tmp_path, *lines, UNREADY)).code == "C208"


@pytest.mark.parametrize("shown", OFF)
def test_fabric_manager_that_nobody_needs_is_nothing(tmp_path: Path, shown: str) -> None:
    report = say(tmp_path, *OFF[shown], "step 3 loss 2.0", "step 4 loss 1.9")
    assert all(one.severity == "note" for one in report.findings)

    other = say(tmp_path, *OFF[shown], "[rank1]: KeyError: 'mask'")
    assert first_of(other).code != "C210"
