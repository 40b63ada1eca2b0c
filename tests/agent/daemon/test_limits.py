"""An agent that uses too much reads figures less often, and says so."""

from __future__ import annotations

import logging

import pytest

from whystuck.agent.config import LimitsSection
from whystuck.agent.limits import OwnLimits, OwnUse, read_own_use


class Meter:
    """Stands for the kernel's figures of a minute and more."""

    def __init__(self) -> None:
        self.use = OwnUse(0.0, 0.0, 40 << 20)

    def go_on(self, cpu_percent: float, rss_bytes: int = 40 << 20) -> None:
        self.use = OwnUse(self.use.time_s + 10, self.use.cpu_s + cpu_percent / 10, rss_bytes)

    def read(self) -> OwnUse:
        return self.use


def run(meter: Meter, limits: OwnLimits, looks: int, percent: float, rss: int = 40 << 20) -> None:
    for _ in range(looks):
        meter.go_on(percent, rss)
        limits.look()


def test_own_use_is_read() -> None:
    first = read_own_use()
    sum(range(1_000_000))
    last = read_own_use()

    assert last.cpu_s > first.cpu_s
    assert 1 << 20 < last.rss_bytes < 1 << 34


def test_little_use_changes_nothing() -> None:
    meter, paces = Meter(), list[float]()
    limits = OwnLimits(LimitsSection(), paces.append, meter.read)

    run(meter, limits, 60, 0.3)

    assert paces == []
    assert limits.cpu_percent == pytest.approx(0.3)


def test_too_much_cpu_slows_down_until_it_is_little_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter, paces = Meter(), list[float]()
    limits = OwnLimits(LimitsSection(cpu_percent=2), paces.append, meter.read)

    with caplog.at_level(logging.WARNING):
        run(meter, limits, 12, 5.0)
        assert paces == [2, 4]
        run(meter, limits, 6, 1.5)
        assert paces == [2, 4]
        run(meter, limits, 12, 0.5)

    assert paces == [2, 4, 2, 1]
    assert "2 times less often than asked: 5.0 % of a core is more than 2 %" in caplog.text
    assert "figures are read as often as asked" in caplog.text


def test_one_burst_is_no_reason() -> None:
    meter, paces = Meter(), list[float]()
    limits = OwnLimits(LimitsSection(cpu_percent=2), paces.append, meter.read)

    run(meter, limits, 1, 10)
    run(meter, limits, 20, 0.1)

    assert paces == []


def test_memory_counts_too_and_the_pace_has_an_end() -> None:
    meter, paces = Meter(), list[float]()
    limits = OwnLimits(LimitsSection(rss_bytes=64 << 20), paces.append, meter.read)

    run(meter, limits, 100, 0.1, 80 << 20)

    assert paces == [2, 4, 8, 16]


def test_no_limit_is_no_limit() -> None:
    meter, paces = Meter(), list[float]()
    limits = OwnLimits(LimitsSection(cpu_percent=0, rss_bytes=0), paces.append, meter.read)

    run(meter, limits, 20, 99, 1 << 40)

    assert paces == []
