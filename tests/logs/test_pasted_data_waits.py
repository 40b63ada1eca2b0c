"""Lines of loops that print the time of a step and how much of it is the wait for its data."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

# timm, by its releases
NEW = (
    "Train: 11 [{0:>4}/2502 ({1:>3.0f}%)]  Loss: 4.120 (4.08)  Time: {2:.3f}s,  204.11/s  "
    "({2:.3f}s,  204.80/s)  LR: 4.120e-04  Data: {3:.3f} ({3:.3f})"
)
OLD = (
    "Train: 11 [{0:>4}/2502 ({1:>3.0f}%)]  Loss:  4.120310 (4.0812)  Time: {2:.3f}s, 1204.11/s  "
    "({2:.3f}s, 1204.80/s)  LR: 4.120e-04  Data: {3:.3f} ({3:.3f})"
)
VAL = "Test: [{0:>4}/97]  Time: {2:.3f} ({2:.3f})  Loss:  0.9120 (0.9311)  Acc@1: 77.1 (76.9)"


def write(form: str, *times: tuple[float, float], prefix: str = "") -> list[str]:
    return [
        prefix + form.format(50 * at, 2.0 * at, whole, data)
        for at, (whole, data) in enumerate(times)
    ]


STARVED = [(1.914, 1.702), (2.031, 1.811), (1.880, 1.655)]


@pytest.mark.parametrize("form", [NEW, OLD])
@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "2026-11-02 10:00:00 INFO "])
def test_loop_of_timm_that_waits_for_data_is_told(tmp_path: Path, form: str, prefix: str) -> None:
    finding = first_of(say(tmp_path, *write(form, *STARVED, prefix=prefix)))

    assert (finding.code, finding.culprits.ranks) == ("S309", [])
    assert "89 %" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(write(NEW, *[(1.914, 0.011)] * 4), id="well"),
        pytest.param(write(NEW, (9.914, 9.001), (0.91, 0.02), (0.92, 0.01)), id="cold cache"),
        pytest.param(write(NEW, *STARVED[:2]), id="two steps"),
        pytest.param(write(VAL, *STARVED), id="no data"),
        pytest.param([line.split("  Data")[0] for line in write(NEW, *STARVED)], id="cut"),
    ],
)
def test_loops_of_timm_that_are_well_are_not_told(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "S309" for one in say(tmp_path, *lines).findings)
