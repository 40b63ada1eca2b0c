"""The stall clock: pure, so its time is whatever the test says."""

from whystuck.launch.stalls.stall import AUTO_FLOOR_S, STARTUP_LIMIT_S, StallClock, StallLimit


def _run(clock: StallClock, events: dict[float, int], until_s: float) -> float | None:
    """Look every second; return when the clock first says stalled."""
    counter, now_s = 0, 0.0
    while now_s <= until_s:
        counter = events.get(now_s, counter)
        clock.look({0: (counter,), 1: (7,)}, has_communicated=counter > 0, now_s=now_s)
        if clock.is_stalled(now_s):
            return now_s
        now_s += 1.0
    return None


def test_auto_when_no_gap_was_long_then_stalls_after_the_floor() -> None:
    clock = StallClock(StallLimit(), 0.0)
    steps = {float(second): second for second in range(5, 31)}
    assert _run(clock, steps, 200) == 30 + AUTO_FLOOR_S + 1


def test_auto_when_a_legal_gap_was_seen_then_waits_five_times_as_long() -> None:
    clock = StallClock(StallLimit(), 0.0)
    assert _run(clock, {5.0: 1, 15.0: 2, 16.0: 3}, 200) == 16 + 5 * 10 + 1


def test_auto_when_start_up_is_slow_then_it_is_no_gap() -> None:
    clock = StallClock(StallLimit(), 0.0)
    _run(clock, {300.0: 1}, 301)
    assert clock.longest_gap_s == 0
    assert clock.limit_s == AUTO_FLOOR_S


def test_auto_before_the_first_collective_then_the_limit_is_ten_minutes() -> None:
    assert _run(StallClock(StallLimit(), 0.0), {}, 2000) == STARTUP_LIMIT_S + 1


def test_fixed_limit_then_gaps_do_not_stretch_it() -> None:
    clock = StallClock(StallLimit(8.0), 0.0)
    assert _run(clock, {5.0: 1, 12.0: 2}, 200) == 12 + 8 + 1


def test_look_when_we_were_not_run_ourselves_then_the_time_does_not_count() -> None:
    clock = StallClock(StallLimit(), 0.0)
    clock.look({0: (1,)}, has_communicated=True, now_s=1.0)
    clock.look({0: (1,)}, has_communicated=True, now_s=500.0)
    assert clock.stalled_s(500.0) == 0.0
    assert not clock.is_stalled(500.0)


def test_look_when_only_one_rank_moves_then_it_is_progress() -> None:
    clock = StallClock(StallLimit(), 0.0)
    clock.look({0: (1,), 1: (1,)}, has_communicated=True, now_s=1.0)
    assert clock.look({0: (1,), 1: (2,)}, has_communicated=True, now_s=2.0)
    assert not clock.look({0: (1,), 1: (2,)}, has_communicated=True, now_s=3.0)
