"""All errors of logs in the order in which they happened, as far as that can be told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from whystuck.diagnose.logs.records import format_time, list_records
from whystuck.diagnose.logs.summary import summarize_logs
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity
from whystuck.evidence.live import ExitRecord, PythonException
from whystuck.evidence.logs.lines import LogCluster, LogEvent, LogFile, Logs, LogTime
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Frame

S = 1_000_000_000


def event(
    artifact: str,
    row: int,
    at_s: float | None = None,
    *,
    rank: int = 0,
    step_ns: int = 1000,
    role: str = "cause",
    clock: str = "",
    signature: str = "py.exc",
    text: str = "it failed",
) -> LogEvent:
    time = None if at_s is None else LogTime(int(at_s * S), step_ns, clock or artifact)
    return LogEvent(
        signature, role, "C204", "python", artifact, row, text, rank=rank, time=time,
        groups={"op": "X", "seq": "1"},
    )  # fmt: skip


def view(
    *events: LogEvent,
    exceptions: Sequence[PythonException] = (),
    exits: Sequence[ExitRecord] = (),
    clusters: Sequence[LogCluster] = (),
) -> LogView:
    files = tuple(LogFile(name, size_bytes=10) for name in {item.artifact for item in events})
    logs = Logs(files or (LogFile("x"),), events, tuple(clusters))
    return LogView(Evidence(logs=logs, exceptions=tuple(exceptions), exits=tuple(exits)))


def places(logs: LogView) -> list[str]:
    return [f"{item.artifact}:{item.row}" for item in list_records(logs)]


def firsts(logs: LogView) -> list[str]:
    return [f"{item.artifact}:{item.row}" for item in list_records(logs) if item.is_first]


def test_errors_of_several_logs_are_in_order_of_time() -> None:
    logs = view(event("b", 3, 5), event("b", 1, 2), event("a", 9, 3))

    assert places(logs) == ["b:1", "a:9", "b:3"]
    assert firsts(logs) == ["b:1"]


def test_error_without_a_time_stands_behind_the_one_above_it() -> None:
    logs = view(event("a", 1, 1), event("a", 2), event("a", 3, 9), event("b", 1, 5))

    assert places(logs) == ["a:1", "a:2", "b:1", "a:3"]


def test_errors_before_the_first_time_of_a_log_stand_before_it() -> None:
    logs = view(event("a", 1), event("a", 2, 7), event("a", 3, 4), event("b", 1, 5))

    assert places(logs) == ["a:1", "a:3", "b:1", "a:2"]


def test_log_without_any_time_comes_last_and_nothing_is_surely_first() -> None:
    logs = view(event("a", 1), event("b", 1, 5))

    assert places(logs) == ["b:1", "a:1"]
    assert firsts(logs) == []


def test_whole_seconds_do_not_turn_the_lines_of_a_log_around() -> None:
    logs = view(event("a", 1, 3.5), event("a", 2, 3, step_ns=S), event("a", 3, 2, step_ns=S))

    assert places(logs) == ["a:3", "a:1", "a:2"]


def test_two_failures_within_a_whole_second_have_no_first() -> None:
    logs = view(event("a", 1, 3, step_ns=S), event("b", 1, 3, step_ns=S))

    assert firsts(logs) == []
    assert firsts(view(event("a", 1, 3, step_ns=S), event("b", 1, 5, step_ns=S))) == ["a:1"]


def test_one_log_has_a_first_line_without_any_time() -> None:
    assert firsts(view(event("a", 4), event("a", 2))) == ["a:2"]


def test_lines_that_only_help_are_never_first() -> None:
    assert firsts(view(event("a", 1, 1, role="context"), event("a", 2, 2))) == ["a:2"]


def test_logs_are_in_the_order_of_their_numbers() -> None:
    logs = view(*(event(f"rank-{number}.log", 1) for number in (10, 9, 1)))

    assert places(logs) == ["rank-1.log:1", "rank-9.log:1", "rank-10.log:1"]


def test_clocks_that_are_known_to_be_off_are_put_right() -> None:
    logs = view(
        event("a", 1, 100, clock="n1", signature="c10d.watchdog_timeout", role="cascade"),
        event("a", 2, 103, clock="n1"),
        event("b", 1, 160, rank=1, clock="n2", signature="c10d.watchdog_timeout", role="cascade"),
        event("b", 2, 161, rank=1, clock="n2"),
    )
    records = list_records(logs)

    assert [f"{item.artifact}:{item.row}" for item in records] == ["a:1", "b:1", "b:2", "a:2"]
    assert {item.artifact: item.shift_ns for item in records} == {"a": 0, "b": -60 * S}
    (offset,) = summarize_logs(logs, []).clocks
    assert (offset.clock, offset.reference, offset.ahead_s) == ("n2", "n1", 60.0)


def test_traceback_and_its_last_line_are_one_record() -> None:
    end = event("a", 8, 5, text="ValueError: no")
    raised = PythonException(
        rank=0, type="ValueError", message="no\nmore", frames=(Frame("main", "/j/train.py", 12),),
        source="log", artifact="a", row=3, last_row=8,
    )  # fmt: skip
    (record,) = list_records(view(end, exceptions=[raised]))

    assert (record.kind, record.signature, record.row) == ("exception", "py.exc", 8)
    assert record.text == "ValueError: no (/j/train.py:12 in main)"
    assert record.time == "1970-01-01T00:00:05.000000"


def test_ends_and_unknown_lines_are_records_and_good_ends_are_not() -> None:
    exits = [
        ExitRecord(rank=1, pid=41, signal=9, source="launcher log", artifact="a", row=9),
        ExitRecord(rank=2, pid=42, code=3, source="launcher log", artifact="a", row=10),
        ExitRecord(rank=3, pid=43, code=0, source="launcher log", artifact="a", row=11),
        ExitRecord(rank=4, pid=44, signal=200, source="launcher log", artifact="a", row=12),
    ]
    cluster = LogCluster("ERROR <*>", "ERROR 1", "a", 20, 7, frozenset({1, 2}))
    records = list_records(view(exits=exits, clusters=[cluster]))

    assert [(item.kind, item.text) for item in records] == [
        ("exit", "rank 1 ended by SIGKILL"),
        ("exit", "rank 2 ended with code 3"),
        ("exit", "rank 4 ended by signal 200"),
        ("unknown", "ERROR 1"),
    ]
    assert records[3].count == 7


def test_what_the_first_finding_rests_on_is_marked() -> None:
    logs = view(event("a", 1, 1), event("b", 7, 9, rank=3))
    finding = Finding(
        code="C204", name="x", severity=Severity.ERROR, confidence=Confidence.LIKELY,
        summary="", because=[Citation("", "b", 7)],
    )  # fmt: skip

    records = list_records(logs, [finding])
    assert [item.is_cause for item in records] == [False, True]
    assert [line.is_cause for line in summarize_logs(logs, [finding]).first] == [True]


def test_ranks_that_begin_with_the_same_kind_of_line_share_a_row() -> None:
    logs = view(
        *(event(f"{rank}", 1, 10 + rank, rank=rank, signature="gloo.peer") for rank in range(5)),
        event("9", 1, 1, rank=9),
        event("9", 2, 2, rank=9, signature="gloo.peer"),
        event("k", 1, 3, rank=-1, signature="xid.79"),
    )
    shown = summarize_logs(logs, []).first

    assert [(line.ranks, line.signature, line.artifact) for line in shown] == [
        ("9", "py.exc", "9"),
        ("", "xid.79", "k"),
        ("0-4", "gloo.peer", "0"),
    ]


def test_no_logs_no_summary() -> None:
    assert summarize_logs(LogView(Evidence()), []).files == 0


@pytest.mark.parametrize(
    ("ns", "step_ns", "is_zoned", "text"),
    [
        (0, 1, True, "1970-01-01T00:00:00.000000Z"),
        (1_500_000_000, 1_000_000, False, "1970-01-01T00:00:01.500"),
        (1_500_000_000, S, False, "1970-01-01T00:00:01"),
        (-1, S, True, "1969-12-31T23:59:59Z"),
        (1 << 80, S, True, ""),
    ],
)
def test_times_are_no_finer_than_their_clock(
    ns: int, step_ns: int, is_zoned: bool, text: str
) -> None:
    assert format_time(ns, step_ns, is_zoned=is_zoned) == text


def test_host_that_only_a_table_of_ends_names_has_no_clock_of_its_own() -> None:
    ended = ExitRecord(
        rank=1, pid=41, code=1, source="launcher log", artifact="a", row=9,
        time=LogTime(9 * S, S, "localhost"),
    )  # fmt: skip
    other = event("b", 1, 2, rank=2, clock="n2", signature="gloo.peer_closed")
    logs = view(event("a", 1, 1), other, exits=[ended])

    assert summarize_logs(logs, []).unmatched_clocks == ["n2"]


def test_not_all_events_are_compared_with_all_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two months apart, so that none is near another, and their clocks tell so.
    far_s = 60 * 24 * 3600.0
    failures = [event(f"r{number}", 1, 2e9 + far_s * number) for number in range(60)]
    logs = view(*failures)
    asked: list[LogTime] = []
    bound_gap = logs.clocks.bound_gap

    def count(one: LogTime, other: LogTime) -> tuple[int, int] | None:
        asked.append(other)
        return bound_gap(one, other)

    monkeypatch.setattr(logs.clocks, "bound_gap", count)
    monkeypatch.setattr("whystuck.diagnose.logs.view._MOST_COMPARED", 500)
    times = [LogTime(int(1e9 - far_s * number) * S, 1000, "k") for number in range(10)]
    assert [logs.is_felt(time) for time in times] == [False] * 8 + [None] * 2
    assert len(asked) == 500
