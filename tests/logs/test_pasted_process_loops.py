"""Loops of a shell that print the rank and the state of one process after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT

FIRST = (
    "$ for p in $(pgrep -f main.py); do tr '\\0' '\\n' < /proc/$p/environ | grep ^RANK=; "
    "grep -E '^(State|TracerPid)' /proc/$p/status; done"
)
LAST = (
    "$ for q in `pidof python3`; do grep State: /proc/${q}/status; xargs -0 -n1 < "
    "/proc/${q}/environ | grep ^RANK=; done"
)
NUMBERED = "$ for p in $(pgrep -f main.py); do echo $p; cat /proc/$p/environ | tr '\\0' '\\n' | grep ^RANK=; grep State /proc/$p/status; done"  # noqa: E501
ROWS = "n4$ for p in $(pgrep -f main.py); do echo $p $(rank $p) $(grep State /proc/$p/status) $(cat /proc/$p/wchan); done"  # noqa: E501
RUNS, STOPPED, TRACED = "R (running)", "T (stopped)", "t (tracing stop)"


def show_blocks(states: list[str], order: str, *, tracer: bool = False) -> list[str]:
    lines = [{"first": FIRST, "last": LAST, "numbered": NUMBERED}[order]]
    for rank, state in enumerate(states):
        told = [f"State:\t{state}"]
        if tracer:
            told.append(f"TracerPid:\t{7720 if state == TRACED else 0}")
        rank_line = f"RANK={rank}"
        lines += [*told, rank_line] if order == "last" else [rank_line, *told]
        if order == "numbered":
            lines.insert(-len(told) - 1, str(4100 + rank))
    return lines


@pytest.mark.parametrize("order", ["first", "last", "numbered"])
@pytest.mark.parametrize("state", [STOPPED, TRACED])
@pytest.mark.parametrize("wait", [True, False], ids=["others wait", "states alone"])
def test_rank_that_a_loop_shows_as_stopped_is_named(
    tmp_path: Path, order: str, state: str, *, wait: bool
) -> None:
    waits = [WAIT.format(1)] if wait else []
    lines = show_blocks([RUNS, RUNS, state, RUNS], order)
    finding = first_of(say(tmp_path, *waits, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H113", [2])


def test_process_that_traces_a_rank_is_told(tmp_path: Path) -> None:
    lines = show_blocks([RUNS, TRACED, RUNS], "first", tracer=True)
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H113", [1])
    assert "process 7720" in finding.summary


@pytest.mark.parametrize("form", ["{pid} RANK={rank} ", "pid {pid} rank {rank}: ", "RANK={rank} "])
@pytest.mark.parametrize("wait", ["do_signal_stop", "", "0"])
def test_rows_of_a_loop_tell_the_state_of_each_rank(tmp_path: Path, form: str, wait: str) -> None:
    lines = [
        form.format(pid=4100 + rank, rank=rank)
        + (f"State: {STOPPED} {wait}" if rank == 6 else f"State: {RUNS} 0")
        for rank in range(4, 8)
    ]
    finding = first_of(say(tmp_path, WAIT.format(4), ROWS, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H113", [6])


@pytest.mark.parametrize("order", ["first", "last"])
def test_ranks_that_all_run_are_not_said_to_be_stopped(tmp_path: Path, order: str) -> None:
    report = say(tmp_path, WAIT.format(1), *show_blocks([RUNS] * 4, order))

    assert first_of(report).code == "C211"


def test_loop_that_does_not_print_ranks_tells_no_rank(tmp_path: Path) -> None:
    loop = "$ for p in $(pgrep -f main.py); do grep State /proc/$p/status; done"
    lines = [loop, f"State:\t{RUNS}", "RANK=1", f"State:\t{STOPPED}", "RANK=2"]

    assert blamed_of(say(tmp_path, WAIT.format(1), *lines))[0] == set()


def test_local_rank_in_a_row_is_no_rank(tmp_path: Path) -> None:
    lines = [f"4100 LOCAL_RANK=0 State: {RUNS}", f"4101 LOCAL_RANK=1 State: {STOPPED}"]

    assert blamed_of(say(tmp_path, WAIT.format(12), ROWS, *lines))[0] == set()


def test_very_long_loop_is_followed_within_bounds(tmp_path: Path) -> None:
    lines = show_blocks([RUNS] * 3_000, "first")
    report = say(tmp_path, WAIT.format(1), *lines)

    assert first_of(report).code == "C211"
