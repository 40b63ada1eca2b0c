"""Copies and fills of memory."""

from __future__ import annotations

import math

import pytest
from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.tracing.device.copies import METRIC, SERIES_METRIC, tell_kind, tell_pageable


@pytest.mark.parametrize(
    ("name", "kind", "is_pageable"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", 1),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", 0),
        ("Memcpy DtoH (Device -> Pageable)", "DtoH", 1),
        ("Memcpy DtoD (Device -> Device)", "DtoD", 0),
        ("Memcpy PtoP (Device -> Device)", "PtoP", 0),
        ("Memcpy HtoD (Host -> Device)", "HtoD", -1),
        ("CopyHostToDevice", "HtoD", -1),
        ("CopyDeviceToDevice", "DtoD", 0),
        ("Memset (Device)", "Memset", 0),
        ("FillBuffer", "Memset", 0),
        ("Memcpy Unknown (Unknown -> Unknown)", "Memcpy Unknown", -1),
        ("", "", -1),
    ],
)
def test_what_the_name_of_a_copy_tells(name: str, kind: str, is_pageable: int) -> None:
    assert (tell_kind(name), tell_pageable(name)) == (kind, is_pageable)


def test_copies_of_a_kind_add_up() -> None:
    name = "Memcpy HtoD (Pinned -> Device)"
    trace = make_trace(
        [
            make_event("gpu_memcpy", name, 0, 10, device=0, stream=7, bytes=20_000),
            make_event("gpu_memcpy", name, 50, 10, device=0, stream=7, bytes=60_000),
            make_event("gpu_memcpy", name, 90, 10, device=0, stream=7),
            make_event("gpu_memcpy", "Memcpy DtoH (Host)", 99, 10, device=1, stream=7),
            make_event("kernel", "gemm", 120, 10, device=0, stream=7),
        ]
    )

    known, unknown = measure_rows(METRIC, trace)

    assert known == {
        "rank": -1,
        "device": 0,
        "kind": "HtoD",
        "is_pageable": 0,
        "count": 3,
        "bytes": 80_000,
        "sum_ns": 30_000,
        "gbps_mean": 4.0,
        "gbps_max": 6.0,
    }
    assert (unknown["device"], unknown["is_pageable"], unknown["bytes"]) == (1, -1, -1)
    assert math.isnan(unknown["gbps_mean"])
    assert math.isnan(unknown["gbps_max"])


def test_what_the_tracer_measured_is_better_than_rounded_times() -> None:
    told = {"bytes": 1024, "memory bandwidth (GB/s)": 2.0}
    trace = make_trace([make_event("gpu_memset", "Memset (Device)", 0, 0, device=0, **told)])

    (row,) = measure_rows(METRIC, trace)

    assert (row["gbps_mean"], row["gbps_max"]) == (2.0, 2.0)


def test_copies_at_the_same_time_add_up_in_the_series() -> None:
    name = "Memcpy DtoD (Device -> Device)"
    trace = make_trace(
        [
            make_event("gpu_memcpy", name, 0, 10, device=0, stream=7, bytes=1_000),
            make_event("gpu_memcpy", name, 5, 10, device=0, stream=8, bytes=3_000),
            make_event("gpu_memcpy", name, 15, 10, device=0, stream=8, bytes=3_000),
            make_event("gpu_memset", "Memset (Device)", 5, 10, device=0, stream=8, bytes=5_000),
        ]
    )

    rows = measure_rows(SERIES_METRIC, trace)

    series = [(row["kind"], row["ts_ns"], round(row["gbps"], 9)) for row in rows]
    assert series == [
        ("DtoD", 0, 0.1),
        ("DtoD", 5_000, 0.4),
        ("DtoD", 10_000, 0.3),
        ("DtoD", 15_000, 0.0),
        ("DtoD", 15_000, 0.3),
        ("DtoD", 25_000, 0.0),
        ("Memset", 5_000, 0.5),
        ("Memset", 15_000, 0.0),
    ]
    assert rows[5]["gbps"] == 0.0


def test_no_copies_give_no_rows() -> None:
    for events in ([], [make_event("kernel", "gemm", 0, 1, device=0, stream=7)]):
        assert measure_rows(METRIC, make_trace(events)) == []
        assert measure_rows(SERIES_METRIC, make_trace(events)) == []
