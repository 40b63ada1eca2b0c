"""The states of a trace, as tables of what is seen one after the other."""

from __future__ import annotations

import pytest

from whystuck.agent.ondemand.states import OWN_PROFILER, Case, Look, advance, send
from whystuck.evidence.agent import TraceState

S = 1_000_000_000
BUSY, IDLE = True, False


def _run(case: Case, looks: list[Look]) -> list[TraceState]:
    states = [case.state]
    for look in looks:
        case = advance(case, look)
        if case.state is not states[-1]:
            states.append(case.state)
    return states


def _sent(*, iterations: bool = False, stop_s: int = 60) -> Case:
    case = Case(stop_ns=stop_s * S)
    if iterations:
        return send(case, now_ns=1 * S)
    return send(case, now_ns=1 * S, start_ns=2 * S, end_ns=3 * S)


@pytest.mark.parametrize(
    ("looks", "states"),
    [
        pytest.param(
            [
                Look(1 * S, part_bytes=0),
                Look(2 * S, is_busy=BUSY, part_bytes=0),
                Look(3 * S, part_bytes=500),
                Look(4 * S, file_bytes=900),
                Look(5 * S, is_busy=IDLE, file_bytes=900),
            ],
            "warm-up collecting writing written",
            id="all that Kineto does",
        ),
        pytest.param([Look(4 * S, file_bytes=9)], "warm-up written", id="between two looks"),
        pytest.param(
            [Look(2 * S, is_busy=BUSY), Look(3 * S, is_busy=IDLE), Look(4 * S, is_busy=IDLE)],
            "warm-up collecting failed",
            id="no file is ever seen",
        ),
        pytest.param(
            [
                Look(2 * S, is_busy=BUSY, part_bytes=0),
                Look(3 * S, is_busy=IDLE, part_bytes=0),
                Look(4 * S, is_busy=IDLE, part_bytes=0),
            ],
            "warm-up collecting cancelled",
            id="dropped for the profiler of the job",
        ),
        pytest.param(
            [
                Look(2 * S, is_busy=BUSY, part_bytes=0),
                Look(3 * S, is_busy=IDLE, part_bytes=0),
                Look(3 * S + 1, file_bytes=7),
            ],
            "warm-up collecting written",
            id="one idle poll is no loss",
        ),
        pytest.param(
            [Look(2 * S, part_bytes=0), Look(3 * S, is_alive=False, part_bytes=0)],
            "warm-up collecting died",
            id="ended while it was traced",
        ),
        pytest.param(
            [Look(2 * S, part_bytes=0), Look(3 * S, is_alive=False, file_bytes=7)],
            "warm-up collecting written",
            id="ended right behind its file",
        ),
        pytest.param(
            [Look(3 * S, part_bytes=4, part_ns=2 * S), Look(4 * S, is_busy=BUSY, part_bytes=9)]
            + [Look(n * S, is_busy=IDLE, part_bytes=9) for n in (5, 6)],
            "warm-up collecting writing failed",
            id="not renamed",
        ),
        pytest.param([Look(61 * S, is_busy=IDLE)], "warm-up expired", id="nothing ever begins"),
        pytest.param(
            [Look(2 * S + 1, part_bytes=0), Look(3 * S, is_busy=IDLE, part_bytes=0)],
            "warm-up failed",
            id="its thread woke too late",
        ),
        pytest.param(
            [
                Look(2 * S + 9, part_bytes=0, part_ns=2 * S - 9),
                Look(3 * S, is_busy=IDLE, part_bytes=0),
                Look(3 * S + 1, file_bytes=7),
            ],
            "warm-up collecting written",
            id="it was seen too late, and woke in time",
        ),
        pytest.param(
            [
                Look(2 * S + 9, part_bytes=0, part_ns=2 * S + 1),
                Look(2 * S + 99, is_busy=BUSY, part_bytes=0),
                Look(3 * S, is_busy=IDLE, part_bytes=0),
                Look(3 * S + 1, file_bytes=7),
            ],
            "warm-up collecting written",
            id="it woke at the last moment",
        ),
        pytest.param(
            [Look(2 * S, is_busy=BUSY, part_bytes=0), Look(61 * S, is_busy=BUSY, part_bytes=0)],
            "warm-up collecting expired",
            id="it never ends",
        ),
        pytest.param(
            [Look(1 * S, part_bytes=0), Look(1 * S + 1, is_busy=BUSY, part_bytes=0)],
            "warm-up",
            id="the window is not open yet",
        ),
    ],
)
def test_sent_request(looks: list[Look], states: str) -> None:
    assert [str(one) for one in _run(_sent(), looks)] == states.split()


def test_process_that_has_no_time_to_warm_up_drops_its_window() -> None:
    case = send(Case(), now_ns=1 * S, start_ns=3 * S, end_ns=4 * S, warmup_ns=1 * S)
    late = [Look(2 * S + 1, part_bytes=0), Look(2 * S + 2, is_busy=IDLE, part_bytes=0)]
    soon = [Look(2 * S - 1, part_bytes=0), Look(2 * S + 2, is_busy=BUSY, part_bytes=0)]
    assert [str(one) for one in _run(case, late)] == ["warm-up", "failed"]
    assert [str(one) for one in _run(case, soon)] == ["warm-up"]


# Another clock, as that of a file server.
@pytest.mark.parametrize("part_ns", [9 * S, S // 2])
def test_time_of_a_file_that_cannot_be_is_not_believed(part_ns: int) -> None:
    case = advance(_sent(), Look(2 * S - 1, part_bytes=0, part_ns=part_ns))
    assert case.seen_ns == 2 * S - 1


def test_file_that_grows_is_not_given_up() -> None:
    case = _sent()
    for second in range(3, 200):
        case = advance(case, Look(second * S, is_busy=BUSY, part_bytes=second))
    assert case.state is TraceState.WRITING
    assert advance(case, Look(258 * S, part_bytes=199)).state is TraceState.WRITING
    case = advance(case, Look(261 * S, part_bytes=199))
    assert (case.state, case.reason) == (TraceState.EXPIRED, "its file grows no more")


@pytest.mark.parametrize(
    ("looks", "state", "word"),
    [
        ([Look(1 * S)], TraceState.PENDING, ""),
        ([Look(1 * S, is_busy=BUSY)], TraceState.PENDING, OWN_PROFILER),
        ([Look(1 * S, is_busy=BUSY), Look(61 * S)], TraceState.EXPIRED, "own profiler runs"),
        ([Look(61 * S)], TraceState.EXPIRED, "does not ask for work"),
        ([Look(1 * S, is_alive=False)], TraceState.DIED, "before it could be asked"),
        ([Look(1 * S, file_bytes=9)], TraceState.PENDING, ""),
    ],
)
def test_request_that_waits(looks: list[Look], state: TraceState, word: str) -> None:
    case = Case(stop_ns=60 * S)
    for look in looks:
        case = advance(case, look)
    assert case.state is state
    assert word in case.reason


def test_what_has_ended_stays_as_it_is() -> None:
    for state in ("written", "cancelled", "died", "refused", "busy", "expired", "failed"):
        case = Case(state=TraceState(state), sent_ns=1)
        assert case.is_ended
        assert advance(case, Look(99 * S, is_alive=False, file_bytes=3)) is case


def test_iterations_have_no_window() -> None:
    case = advance(_sent(iterations=True), Look(1 * S + 1, part_bytes=0))
    assert case.state is TraceState.COLLECTING
    assert case.collecting_ns == 1 * S + 1
    assert advance(case, Look(1 * S + 2, part_bytes=99)).state is TraceState.WRITING
