"""What reports say of logs beside the findings."""

from __future__ import annotations

from whystuck.evidence.logs.report import ClockOffset, FirstLine, LogSummary, UnknownLine
from whystuck.report.logs import describe_files, format_bytes, lay_out_logs, render_logs


def first(number: int, time: str = "", *, is_cause: bool = False) -> FirstLine:
    return FirstLine(
        ranks=str(number),
        node="n1",
        time=time,
        artifact=f"rank-{number}.log",
        row=7,
        signature="",
        role="cause",
        text=f"RuntimeError: {number}",
        is_cause=is_cause,
    )


def clock(number: int, ahead_s: float) -> ClockOffset:
    return ClockOffset(clock=f"n{number}", reference="n0", ahead_s=ahead_s, error_s=2.0)


def unknown(number: int) -> UnknownLine:
    return UnknownLine(
        template=f"ERROR {number} <*>", sample="", artifact="a.log", row=3, count=5, ranks="0-2"
    )


def test_nothing_is_shown_when_there_is_nothing() -> None:
    assert lay_out_logs(LogSummary(files=3)) is None
    assert list(render_logs(LogSummary(files=3), 95)) == []


def test_line_has_time_rank_place_and_text() -> None:
    logs = LogSummary(
        files=1, records=2, first=[first(3, "2026-01-31T10:00:00.123456Z", is_cause=True)]
    )

    assert list(render_logs(logs, 95)) == [
        "first errors in the logs, of 2 in all",
        "  -> 10:00:00.123Z  rank 3 on n1  rank-3.log:7  RuntimeError: 3",
        "",
    ]


def test_dates_are_shown_when_they_differ() -> None:
    lines = [first(1, "2026-01-31T23:59:59"), first(2, "2026-02-01T00:00:01")]
    shown = list(render_logs(LogSummary(files=1, first=lines), 95))

    assert "     2026-01-31 23:59:59  rank 1 on n1" in shown[1]


def test_the_cause_is_shown_however_late_it_stands() -> None:
    lines = [*(first(number) for number in range(30)), first(30, is_cause=True)]
    shown = list(render_logs(LogSummary(files=1, first=lines), 95))

    assert len(shown) == 11
    assert shown[8].startswith("  -> ")
    assert "rank 30" in shown[8]
    assert shown[9].strip().startswith("and 23 other beginnings")
    assert len(lay_out_logs(LogSummary(first=lines), whole=True).rows) == 31  # type: ignore[union-attr]


def test_unknown_lines_are_bounded_too() -> None:
    shown = list(render_logs(LogSummary(unknown=[unknown(n) for n in range(9)]), 95))

    assert "     5x  ranks 0-2  a.log:3  ERROR 0 <*>" in shown
    assert "     and 5 other unknown lines: `whystuck logs --list` has all errors" in shown


def test_long_places_put_the_text_on_a_line_of_its_own() -> None:
    line = FirstLine(
        ranks="1", node="", time="", artifact="a/" * 40 + "x.log", row=1,
        signature="", role="", text="RuntimeError: " + "x" * 300,
    )  # fmt: skip
    shown = list(render_logs(LogSummary(first=[line]), 95))

    assert shown[2].startswith("       RuntimeError: xxx")
    assert len(shown[2]) <= 95


def test_clocks_are_told_when_there_is_an_order_to_put_right() -> None:
    lines = [first(1, "2026-01-31T10:00:00"), first(2, "2026-01-31T10:00:01")]

    few = list(render_logs(LogSummary(first=lines, clocks=[clock(1, 31.0)]), 95))
    behind = list(render_logs(LogSummary(first=lines, clocks=[clock(1, -31.0)]), 95))
    many = [clock(number, 10.0 * number) for number in range(1, 7)]
    summed = list(render_logs(LogSummary(first=lines, clocks=many), 95))
    alone = list(render_logs(LogSummary(first=lines[:1], clocks=many), 95))

    assert (
        few[3] == "  the clock of n1 is 31 s ahead of that of n0 (within 2 s); times are put right"
    )
    assert "is 31 s behind that of n0" in behind[3]
    assert summed[3].startswith(
        "  the clocks of 6 hosts are off by up to 1 m 0 s (known within 2 s)"
    )
    assert not any("clock" in line for line in alone)


def test_clocks_that_nothing_compares_are_told() -> None:
    lines = [first(1, "2026-01-31T10:00:00")]
    one = list(render_logs(LogSummary(first=lines, unmatched_clocks=["n1"]), 95))
    names = [f"n{number}" for number in range(1, 6)]
    several = list(render_logs(LogSummary(first=lines, unmatched_clocks=names), 95))

    assert one[2] == "  nothing tells how far the clock of n1 is off"
    assert several[2] == "  nothing tells how far the clocks of n1, n2, n3 and 2 more are off"


def test_attempts_are_told() -> None:
    shown = list(render_logs(LogSummary(first=[first(1)], records=9, attempts=3), 95))

    assert shown[0] == "first errors in the logs, of 9 in all, in 3 attempts"


def test_sizes_are_short() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1024, 3_355_443_200, 1 << 50)] == [
        "0 B", "1023 B", "1 KiB", "3.12 GiB", "1024 TiB",
    ]  # fmt: skip
    assert describe_files(LogSummary(files=512, bytes=1 << 30)) == "512 logs, 1 GiB"
    assert describe_files(LogSummary()) == ""
