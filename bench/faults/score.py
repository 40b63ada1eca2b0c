"""The totals of a benchmark, against the targets."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.faults.judge import Outcome


@dataclass(frozen=True)
class Score:
    """One total. None: nothing to measure in this selection."""

    name: str
    value: float | None
    target: float
    at_least: bool
    unit: str = "%"

    @property
    def met(self) -> bool:
        if self.value is None:
            return True
        return self.value >= self.target if self.at_least else self.value <= self.target

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{self.value:.1f}{self.unit}"
        bound = ">=" if self.at_least else "<="
        mark = "ok  " if self.met else "MISS"
        return f"{mark} {self.name:<24}{value:>8}   target {bound} {self.target:g}{self.unit}"


def score(outcomes: list[Outcome], *, default_limit: bool) -> list[Score]:
    faulty = [one for one in outcomes if one.expected != "healthy"]
    scores = [
        Score("rank", _share(one.rank_ok for one in faulty), 95, at_least=True),
        Score("line", _share(one.line_ok for one in faulty), 90, at_least=True),
        Score("name", _share(one.name_ok for one in faulty), 90, at_least=True),
        Score("wrong rank", _share(one.wrong_rank for one in outcomes), 1, at_least=False),
        _count("false alarms", [one.false_alarm for one in outcomes]),
        _count("exit code not expected", [not one.exit_ok for one in outcomes]),
        _count("processes left over", [one.leftovers > 0 for one in outcomes]),
        _count("answers that changed", [one.again_ok is False for one in outcomes]),
        _longest("detection to verdict", [one.detection_to_verdict for one in outcomes], 5),
    ]
    if default_limit:
        delays = [one.stall_to_verdict for one in outcomes]
        scores.append(_longest("stall to verdict", delays, 30))
    return scores


def score_bare(outcomes: list[Outcome]) -> list[Score]:
    """The totals of snapshots of jobs that were started without whystuck."""
    faulty = [one for one in outcomes if one.expected != "healthy"]
    return [
        Score("right", _share(_is_right(one) for one in faulty), 70, at_least=True),
        _count("wrong rank", [one.wrong_rank for one in outcomes]),
        _count("false alarms", [one.false_alarm for one in outcomes]),
        Score(
            "without any finding",
            _share(one.got == "-" for one in faulty),
            30,
            at_least=False,
        ),
    ]


def _is_right(outcome: Outcome) -> bool:
    return False not in (outcome.name_ok, outcome.rank_ok, outcome.line_ok)


def _share(answers: Iterable[bool | None]) -> float | None:
    known = [answer for answer in answers if answer is not None]
    return 100 * sum(known) / len(known) if known else None


def _count(name: str, events: list[bool]) -> Score:
    return Score(name, float(sum(events)), 0, at_least=False, unit="")


def _longest(name: str, seconds: list[float | None], target: float) -> Score:
    known = [value for value in seconds if value is not None]
    return Score(name, max(known, default=None), target, at_least=False, unit=" s")
