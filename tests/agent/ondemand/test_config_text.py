from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.agent.ondemand.config_text import (
    Timing,
    check_path,
    make_config,
    read_raw_config,
    written_path,
)
from whystuck.evidence.agent import TraceRequest
from whystuck.evidence.errors import UsageError


def _lines(text: str) -> dict[str, str]:
    assert text.endswith("\n")
    return dict(line.split("=") for line in text.splitlines())


NOW = Timing()


def _make(
    request: TraceRequest, timing: Timing = NOW, log_file: str = "/t/a.json"
) -> dict[str, str]:
    return _lines(make_config(request, log_file=log_file, trace_id="id1", timing=timing))


def test_iterations_begin_where_they_are_to() -> None:
    lines = _make(TraceRequest(iterations=3), Timing(start_iteration=120, roundup=20))
    assert lines == {
        "ACTIVITIES_LOG_FILE": "/t/a.json",
        "REQUEST_TRACE_ID": "id1",
        "ACTIVITIES_ITERATIONS": "3",
        "ACTIVITIES_DURATION_MSECS": "0",
        "ACTIVITIES_WARMUP_ITERATIONS": "0",
        "PROFILE_START_ITERATION": "120",
        "PROFILE_START_ITERATION_ROUNDUP": "20",
    }


def test_next_iteration_is_taken_where_none_is_named() -> None:
    lines = _make(TraceRequest(iterations=1))
    assert lines["PROFILE_START_ITERATION"] == "0"
    assert lines["PROFILE_START_ITERATION_ROUNDUP"] == "1"


def test_time_has_no_warm_up_unless_asked_and_rounds_it_up() -> None:
    request = TraceRequest(duration_ms=200)
    assert _make(request) == {
        "ACTIVITIES_LOG_FILE": "/t/a.json",
        "REQUEST_TRACE_ID": "id1",
        "ACTIVITIES_DURATION_MSECS": "200",
        "ACTIVITIES_WARMUP_PERIOD_SECS": "0",
    }
    timed = _make(request, Timing(start_time_ms=1_700_000_000_000, warmup_ms=1100))
    assert timed["PROFILE_START_TIME"] == "1700000000000"
    assert timed["ACTIVITIES_WARMUP_PERIOD_SECS"] == "2"


def test_flags_are_those_of_kineto_and_memory_is_not_the_one_that_spins() -> None:
    lines = _make(
        TraceRequest(duration_ms=1, shapes=True, stacks=True, memory=True, flops=True, modules=True)
    )
    assert {name for name, value in lines.items() if value == "true"} == {
        "PROFILE_REPORT_INPUT_SHAPES",
        "PROFILE_WITH_STACK",
        "PROFILE_PROFILE_MEMORY",
        "PROFILE_WITH_FLOPS",
        "PROFILE_WITH_MODULES",
    }
    assert "PROFILE_MEMORY" not in lines


@pytest.mark.parametrize(
    "path",
    [
        "relative.json",
        "",
        "/a\nPROFILE_MEMORY=true",
        "/a\r/b",
        "/a=b.json",
        "/a#b.json",
        "/a\0b",
        "/a\u2028b",
        "/a.json ",
        "/" + "a" * 1024,
        "/\udc80",
    ],
)
def test_paths_that_kineto_would_misread_are_refused(path: str) -> None:
    with pytest.raises(UsageError):
        check_path(path)
    with pytest.raises(UsageError):
        _make(TraceRequest(), log_file=path)


@pytest.mark.parametrize(
    "request_",
    [
        TraceRequest(iterations=-1),
        TraceRequest(iterations=10_001),
        TraceRequest(duration_ms=0),
        TraceRequest(duration_ms=600_001),
        TraceRequest(warmup_ms=-5),
        TraceRequest(start_iteration=-2),
        TraceRequest(start_iteration=2**31),
        TraceRequest(roundup=0),
        TraceRequest(start_time_ms=-1),
        TraceRequest(id="a b"),
        TraceRequest(id="a\nB=1"),
        TraceRequest(log_file="/x\ny"),
    ],
)
def test_requests_out_of_bounds_are_refused(request_: TraceRequest) -> None:
    with pytest.raises(UsageError):
        _make(request_)


@given(st.text(max_size=80))
def test_no_path_makes_another_line(path: str) -> None:
    try:
        lines = _make(TraceRequest(), log_file="/" + path)
    except UsageError:
        return
    assert lines["ACTIVITIES_LOG_FILE"] == "/" + path
    assert len(lines) == 4


def test_configuration_of_a_client_is_read_and_what_spins_is_left_out() -> None:
    raw = read_raw_config(
        "\n    ACTIVITIES_LOG_FILE=/tmp/t.json\nPROFILE_START_TIME=1700000000000\n"
        "ACTIVITIES_DURATION_MSECS=1000\nPROFILE_MEMORY=true\nPROFILE_MEMORY_DURATION_MSECS=1000\n"
        "# a comment\n\nPROFILE_WITH_STACK=true\n    REQUEST_TRACE_ID=12\n"
    )
    assert raw.dropped == ("PROFILE_MEMORY", "PROFILE_MEMORY_DURATION_MSECS", "REQUEST_TRACE_ID")
    assert raw.log_file == "/tmp/t.json"
    assert (raw.iterations, raw.duration_ms, raw.start_time_ms) == (0, 1000, 1700000000000)
    assert raw.has_stacks
    assert _lines(raw.text("id9"))["REQUEST_TRACE_ID"] == "id9"
    assert "PROFILE_MEMORY=" not in raw.text("id9")


def test_recorded_requests_of_the_dyno_client_are_read() -> None:
    texts = {
        "default": "ACTIVITIES_LOG_FILE=/tmp/t.json\nPROFILE_START_TIME=0\n"
        "ACTIVITIES_DURATION_MSECS=500\nPROFILE_WITH_STACK=false",
        "iterations": "ACTIVITIES_LOG_FILE=/tmp/t.json\nPROFILE_START_ITERATION=0\n"
        "PROFILE_START_ITERATION_ROUNDUP=100\nACTIVITIES_ITERATIONS=10\nPROFILE_WITH_STACK=true",
    }
    by_time, by_step = (read_raw_config(texts[name]) for name in ("default", "iterations"))
    assert (by_time.iterations, by_time.duration_ms, by_time.warmup_ms) == (0, 500, 5000)
    assert not by_time.has_stacks
    assert (by_step.iterations, by_step.has_stacks) == (10, True)


@pytest.mark.parametrize(
    "text",
    ["NOT A LINE", "A=b=c", "=x", "lower=1", "A=\x01", "ACTIVITIES_LOG_FILE=x", "A=" * 40_000],
)
def test_bad_configurations_of_clients_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_raw_config(text)


@given(st.text(max_size=300))
def test_no_text_of_a_client_does_anything_else_than_be_refused(text: str) -> None:
    try:
        raw = read_raw_config(text)
    except UsageError:
        return
    assert raw.duration_ms >= 0
    assert read_raw_config(raw.text("x")).lines == raw.lines


def test_pid_goes_before_the_suffix() -> None:
    assert written_path("/t/a.json", 7) == "/t/a_7.json"
    assert written_path("/t/a.pt.trace.json", 7) == "/t/a.pt.trace_7.json"
    assert written_path("/t/a", 7) == "/t/a"


def test_requests_cross_as_json() -> None:
    request = TraceRequest(id="x", iterations=2, packed=False)
    assert msgspec.json.decode(msgspec.json.encode(request), type=TraceRequest) == request
    assert Path(written_path("/t/a.json", 1)).is_absolute()
