"""How well devices were used."""

from __future__ import annotations

import math

import pytest
from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.evidence.traces.events import Trace
from whystuck.tracing.device.utilisation import METRIC


def make() -> Trace:
    def tell(blocks: float, percent: float) -> dict[str, float]:
        return {"blocks per SM": blocks, "est. achieved occupancy %": percent}

    return make_trace(
        [
            make_event("user_annotation", "ProfilerStep#1", 0, 100),
            make_event("user_annotation", "ProfilerStep#2", 100, 100),
            make_event("kernel", "a", 10, 20, device=0, stream=7, **tell(0.25, 10)),
            make_event("kernel", "b", 20, 20, device=0, stream=8, **tell(2, 50)),
            make_event("kernel", "c", 90, 20, device=0, stream=7, **tell(0.5, 30)),
            make_event("gpu_memcpy", "Memcpy HtoD", 140, 10, device=0, stream=7),
        ]
    )


def test_shares_of_the_window_and_of_steps() -> None:
    window, first, second = measure_rows(METRIC, make(), all_steps=True)

    assert (window["step"], window["wall_ns"], window["busy_ns"]) == (-1, 140_000, 60_000)
    assert window["busy_share"] == 60 / 140
    # A quarter for 10 µs, then all for 20, then a half for 20.
    assert window["sm_efficiency"] == pytest.approx((2.5 + 20 + 10) / 140)
    assert window["occupancy"] == pytest.approx((0.1 * 20 + 0.5 * 20 + 0.3 * 20) / 60)
    assert (first["step"], first["wall_ns"], first["busy_ns"]) == (1, 100_000, 40_000)
    assert first["sm_efficiency"] == pytest.approx((2.5 + 20 + 5) / 100)
    assert (second["step"], second["busy_ns"]) == (2, 20_000)
    assert second["sm_efficiency"] == pytest.approx(5 / 100)
    assert math.isnan(second["occupancy"])


def test_the_last_step_is_left_out_when_it_is_out_of_the_window() -> None:
    assert [row["step"] for row in measure_rows(METRIC, make())] == [-1, 1]


def test_kernels_that_tell_nothing_leave_estimates_unknown() -> None:
    trace = make_trace(
        [
            make_event("kernel", "a", at, 10, device=device, stream=7)
            for device, at in ((0, 0), (3, 9))
        ]
    )

    first, second = measure_rows(METRIC, trace)

    assert (first["device"], second["device"]) == (0, 3)
    for row in (first, second):
        assert row["busy_share"] == 1.0
        assert math.isnan(row["sm_efficiency"])
        assert math.isnan(row["occupancy"])


def test_no_device_work_gives_no_rows() -> None:
    assert measure_rows(METRIC, make_trace([])) == []
