"""Times of logs are compared only as far as their clocks allow."""

from __future__ import annotations

from whystuck.diagnose.logs.clocks import Clocks
from whystuck.diagnose.logs.story import LOST, OUTSIDE, OWN, TAKEN, WAIT, Case, Story
from whystuck.diagnose.logs.view import LogView, is_same_host, simplify_bus
from whystuck.evidence.logs.lines import LogEvent, LogTime
from whystuck.evidence.model import Evidence

S = 1_000_000_000
NOON = 1_780_000_000 * S
DAY = 86_400 * S


def stamp(
    seconds: float, clock: str = "n0", step: float = 0.001, *, zoned: bool = False
) -> LogTime:
    return LogTime(NOON + int(seconds * S), int(step * S), clock, zoned)


def limit(seconds: float, clock: str, seq: str = "7") -> LogEvent:
    groups = {"op": "ALLREDUCE", "seq": seq}
    signature = "c10d.watchdog_timeout"
    return LogEvent(
        signature,
        "cause",
        "C211",
        "hang",
        f"{clock}.log",
        1,
        "x",
        groups,
        time=stamp(seconds, clock),
    )


def case(code: str, tier: int, *ranks: int, time: LogTime | None = None) -> Case:
    return Case(code, code, tier, ranks, time=time)


def story(*cases: Case) -> Story:
    return Story(LogView(Evidence()), [lambda _: iter(cases)])


def roots(*cases: Case) -> list[str]:
    return [one.code for one in story(*cases).roots]


# ---------------------------------------------------------------------------------------- clocks


def test_one_clock_orders_what_its_steps_can_show() -> None:
    clocks = Clocks([])

    assert clocks.is_before(stamp(1), stamp(2))
    assert not clocks.is_before(stamp(2), stamp(1))
    assert not clocks.is_before(stamp(1, step=1), stamp(1, step=1))
    assert clocks.is_before(stamp(1, step=1), stamp(2, step=1))
    assert not clocks.is_before(None, stamp(1))


def test_stamps_of_two_kinds_on_one_host_need_some_seconds() -> None:
    clocks = Clocks([])

    assert not clocks.is_before(stamp(0, step=1), stamp(2))
    assert clocks.is_before(stamp(0, step=1), stamp(4))


def test_clocks_that_nothing_compares_may_be_minutes_apart() -> None:
    clocks = Clocks([])

    assert not clocks.is_before(stamp(0, "a", zoned=True), stamp(200, "b", zoned=True))
    assert clocks.is_before(stamp(0, "a", zoned=True), stamp(400, "b", zoned=True))


def test_clocks_without_a_zone_may_be_a_day_apart() -> None:
    clocks = Clocks([])

    assert not clocks.is_before(stamp(0, "a"), stamp(7200, "b"))
    assert clocks.is_before(stamp(0, "a"), LogTime(NOON + 3 * DAY, 1, "b"))


def test_programs_of_one_host_may_write_in_two_zones() -> None:
    clocks = Clocks([])

    assert not clocks.is_before(stamp(0), stamp(3605), apart=True)
    assert clocks.is_before(stamp(0), stamp(3605))
    assert clocks.is_before(stamp(0), stamp(300), apart=True)


def test_what_both_hosts_saw_compares_their_clocks() -> None:
    clocks = Clocks([limit(100, "a"), limit(700, "b")])

    # The clock of b is 600 s ahead, give or take ten.
    assert clocks.is_before(stamp(0, "a"), stamp(650, "b"))
    assert clocks.is_before(stamp(630, "b"), stamp(100, "a"))
    assert not clocks.is_before(stamp(600, "b"), stamp(5, "a"))


def test_anchors_that_disagree_compare_nothing() -> None:
    events = [limit(100, "a"), limit(700, "b"), limit(200, "a", "9"), limit(300, "b", "9")]

    assert not Clocks(events).is_before(stamp(0, "a"), stamp(650, "b"))


def test_time_since_boot_is_not_compared_with_dates() -> None:
    uptime = LogTime(2_500_000 * S, 1, "n0 since boot")

    assert Clocks([]).bound_gap(uptime, stamp(0)) is None


# ----------------------------------------------------------------------------------- what follows


def test_what_stands_lower_follows_from_what_stands_higher() -> None:
    assert roots(case("C209", LOST), case("C211", WAIT), case("C204", OWN, 3)) == ["C204"]
    assert roots(case("C201", TAKEN, 1), case("C204", OWN, 3)) == ["C204"]
    assert roots(case("C209", LOST), case("C211", WAIT)) == ["C211"]


def test_broken_machine_explains_only_the_ranks_it_reaches() -> None:
    assert roots(case("C208", OUTSIDE, 5), case("C212", OWN, 5)) == ["C208"]
    assert roots(case("C208", OUTSIDE, 5), case("C204", OWN, 2)) == ["C208", "C204"]


def test_what_surely_came_before_does_not_follow() -> None:
    late = case("C208", OUTSIDE, 5, time=stamp(60))
    early = case("C204", OWN, 2, time=stamp(0))

    assert "C204" in roots(late, early)


def test_earlier_of_two_failures_is_the_first_cause() -> None:
    first, second = case("C204", OWN, 2, time=stamp(0)), case("C206", OWN, 3, time=stamp(5))

    assert roots(first, second) == ["C204"]
    assert roots(second, first) == ["C204"]


def test_failures_that_nothing_orders_are_a_tie_and_blame_nobody() -> None:
    told = story(case("C204", OWN, 2), case("C206", OWN, 3))

    assert told.is_tied
    assert [one.ranks for one in told.roots] == [(), ()]
    assert [one.details["candidates"]["ranks"] for one in told.roots] == [[2], [3]]


def test_end_from_outside_explains_the_noise_after_it_not_the_failure_before() -> None:
    ended = case("C207", OUTSIDE, time=stamp(100))

    assert roots(ended, case("C212", OWN, 3, time=stamp(101))) == ["C207"]
    assert roots(ended, case("C204", OWN, 3, time=stamp(0))) == ["C204"]


def test_names_of_hosts_and_devices_are_compared_as_people_write_them() -> None:
    assert is_same_host("n0", "N0.cluster.local")
    assert not is_same_host("", "")
    assert {simplify_bus(bus) for bus in ("9b000", "0000:9b:00.0", "PCI:0000:9b:00")} == {"9b000"}
    assert simplify_bus("0000:06:00") == "6000"
