"""V503, on what ranks would have written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from whystuck.diagnose.algorithms.values.skipped_updates import find_skipping, list_series
from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Confidence, Finding, Severity, Verdict
from whystuck.evidence.model import Evidence, Incident
from whystuck.evidence.ops.inspection import Inspection, NotFinite, ScalerUpdate

OPS_AN_UPDATE = 3


def _updates(
    rank: int,
    skipped: Iterable[int],
    count: int,
    *,
    scale: float | None = 65536.0,
    source: str = "scaler",
    has_ops: bool = True,
    grow_every: int = 2000,
) -> tuple[ScalerUpdate, ...]:
    """Return the updates of a scaler that halves and doubles as torch's does."""
    numbers, rows, skips, init, good = set(skipped), [], 0, scale, 0
    for number in range(1, count + 1):
        is_skipped = number in numbers
        skips += is_skipped
        first = (number - 1) * OPS_AN_UPDATE + 1
        rows.append(
            ScalerUpdate(
                rank,
                step=number - skips,
                scale=scale,
                is_skipped=is_skipped,
                first_op=first,
                last_op=first + (OPS_AN_UPDATE - 1 if has_ops else -1),
                updates=number,
                skips=skips,
                source=source,
                init=init,
            )
        )
        good = 0 if is_skipped else good + 1
        if scale is not None:
            scale = scale / 2 if is_skipped else scale
            if good == grow_every:
                scale, good = scale * 2, 0
    kept = [row for row in rows if row.is_skipped or row.updates % 20 == 0]
    return tuple(sorted({*rows[:1], *kept, *rows[-1:]}, key=lambda row: row.updates))


def _job(
    skipped: Mapping[int, Iterable[int]],
    count: int,
    events: Callable[[int], tuple[NotFinite, ...]] = lambda _: (),
    spec: str = "amp",
    **changes: Any,
) -> list[Inspection]:
    return [
        Inspection(
            rank,
            spec,
            scaler=_updates(rank, numbers, count, **changes),
            not_finite=events(rank),
        )
        for rank, numbers in skipped.items()
    ]


def _all(skipped: Iterable[int], ranks: int = 4) -> dict[int, list[int]]:
    return {rank: list(skipped) for rank in range(ranks)}


def _report(inspections: Iterable[Inspection]) -> tuple[Verdict, list[Finding]]:
    evidence = Evidence(inspections=tuple(inspections), incident=Incident(kind="inspection"))
    report = diagnose(evidence)
    return report.verdict, list(report.findings)


def _find(inspections: Iterable[Inspection]) -> Finding:
    verdict, findings = _report(inspections)
    assert verdict is Verdict.DIVERGED
    (finding,) = findings
    assert (finding.code, finding.name) == ("V503", "updates-skipped")
    return finding


def test_updates_when_38_of_40_are_skipped_then_says_so_of_all_ranks() -> None:
    finding = _find(_job(_all(range(3, 41)), 40))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.culprits.ranks == []
    assert finding.victims.ranks == "0-3"
    assert finding.summary == (
        "all ranks skipped 38 of the last 40 optimizer steps, since step 2: `GradScaler` found "
        "gradients that are not finite; its scale fell from 65536 to 4.77e-07"
    )
    assert finding.details["since_step"] == 2
    assert (finding.details["scale_from"], finding.details["reason"]) == (65536.0, "skips")
    assert finding.measures["skipped_share"] == pytest.approx(0.95)
    assert any("--inspect finite" in text for text in finding.remedies)


@pytest.mark.parametrize(
    ("skipped", "count", "init"),
    [
        ([], 40, 65536.0),
        (range(1, 9), 12, 65536.0),  # the search of a scaler that is new
        (range(1, 17), 40, 65536.0),
        ([1, 2, 3, 5, 8], 20, 65536.0),
        ([4, 5, 7, 9], 30, 65536.0),
        (range(1, 33), 120, 2.0**33),  # as DeepSpeed used to begin
        (range(50, 5000, 100), 5000, 2.0**60),  # one in a hundred, and far to go
        (range(10, 1000, 2001), 5000, 65536.0),
        ([*range(1, 6), *range(200, 219)], 5000, 65536.0),  # long over
        (range(40, 59), 300, 65536.0),
    ],
)
def test_updates_when_a_scaler_searches_or_skips_rarely_then_is_silent(
    skipped: Iterable[int], count: int, init: float
) -> None:
    assert _report(_job(_all(skipped), count, scale=init))[1] == []


@pytest.mark.parametrize(
    ("skipped", "count", "expected"),
    [
        (range(5, 101, 5), 100, 20),
        (range(5, 1001, 5), 1000, 20),
        (range(2, 41, 2), 40, 20),
        (range(1, 101), 100, 100),
        ([1, 2, 3, *range(950, 1001)], 1000, 51),
        (range(981, 1001), 1000, 20),
    ],
)
def test_updates_when_a_fifth_of_the_last_100_is_skipped_then_is_found(
    skipped: Iterable[int], count: int, expected: int
) -> None:
    finding = _find(_job(_all(skipped), count, scale=2.0**60))
    assert (finding.details["skipped"], finding.details["of"]) == (expected, min(count, 100))


@pytest.mark.parametrize("init", [1.0, 65536.0, 2.0**33])
def test_updates_when_none_is_ever_made_then_is_found(init: float) -> None:
    assert _find(_job(_all(range(1, 41)), 40, scale=init)).details["skipped"] == 40


@pytest.mark.parametrize("begin", [5, 41, 77, 500, 903])
@pytest.mark.parametrize("every", [1, 2, 3, 4])
def test_updates_when_it_begins_somewhere_then_the_step_is_told(begin: int, every: int) -> None:
    skipped = list(range(begin, 1001, every))
    rare = [number for number in (20, 150, 300) if number < begin - 100]
    finding = _find(_job(_all([*rare, *skipped]), 1000, scale=2.0**90))
    assert finding.details["since_update"] == begin
    assert finding.details["since_step"] == begin - 1 - len(rare)


@pytest.mark.parametrize("begin", [8, 10, 14])
def test_updates_when_they_are_skipped_soon_after_the_search_then_the_search_is_not_told(
    begin: int,
) -> None:
    finding = _find(_job(_all([1, 2, 4, *range(begin, 41)]), 40))
    assert (finding.details["since_update"], finding.details["since_step"]) == (begin, begin - 4)


def test_updates_when_the_scale_falls_below_one_and_on_then_is_found() -> None:
    finding = _find(_job(_all(range(60, 1500, 70)), 1500))
    assert (finding.details["reason"], finding.confidence) == ("falling", Confidence.LIKELY)
    assert finding.details["since_update"] == 60
    assert "the loss scale fell from 65536 to 0.03" in finding.summary
    assert finding.details["scale_to"] < 1


@pytest.mark.parametrize(
    ("skipped", "count", "changes"),
    [
        (range(1, 20), 5000, {"scale": 1024.0}),  # found at once, below 1, and kept
        (range(60, 1500, 70), 1500, {"scale": 2.0**60}),
        (range(60, 1500, 70), 1500, {"grow_every": 30}),  # it grows again
    ],
)
def test_updates_when_the_scale_is_low_or_falls_high_up_then_is_silent(
    skipped: Iterable[int], count: int, changes: dict[str, Any]
) -> None:
    assert _report(_job(_all(skipped), count, **changes))[1] == []


def test_updates_when_inspection_begins_late_then_there_is_no_search_to_forgive() -> None:
    inspections = _job(_all(range(1, 11)), 30, scale=2.0**20)
    assert _report(inspections)[1] == []
    late = [
        Inspection(
            one.rank,
            "amp",
            scaler=tuple(ScalerUpdate(**{**vars(row), "init": 2.0**25}) for row in one.scaler),
        )
        for one in inspections
    ]
    assert _find(late).details["skipped"] == 10


def test_updates_when_a_check_skips_them_then_is_likely() -> None:
    finding = _find(_job(_all(range(8, 41)), 40, scale=None, source="guard"))
    assert finding.confidence is Confidence.LIKELY
    assert "a check in the job found gradients that are not finite" in finding.summary
    assert (finding.details["source"], finding.details["scale_from"]) == ("guard", None)
    assert not any("bfloat16" in text for text in finding.remedies)


def test_updates_when_a_check_skips_a_few_then_is_silent() -> None:
    rare = _job(_all([7, 19, 33]), 40, scale=None, source="guard")
    assert _report(rare)[1] == []
    assert _report(_job(_all([2, 3, 4]), 6, scale=None, source="guard"))[1] == []


# ----------------------------------------------------------------------------- ranks that differ


@pytest.mark.parametrize("odd", [0, 1, 3])
def test_updates_when_one_rank_skips_what_others_make_then_it_is_named(odd: int) -> None:
    skipped = {rank: [1, 2] + ([25] if rank == odd else []) for rank in range(4)}
    finding = _find(_job(skipped, 40))
    assert (finding.culprits.ranks, finding.confidence) == ([odd], Confidence.LIKELY)
    assert finding.details["reason"] == "ranks-differ"
    assert finding.details["skipped_by_rank"] == {
        str(rank): 3 if rank == odd else 2 for rank in range(4)
    }
    assert finding.summary.startswith(f"rank {odd} skipped 1 optimizer step that other ranks made")
    assert "ShardedGradScaler" in finding.remedies[0]


def test_updates_when_each_rank_skips_others_then_none_is_named() -> None:
    finding = _find(_job({rank: [10 + rank] for rank in range(4)}, 40))
    assert finding.culprits.ranks == []
    assert "all ranks skip optimizer steps that others make" in finding.summary


def test_updates_when_one_rank_has_not_come_as_far_then_only_common_ones_count() -> None:
    far, near = _job({0: [1, 30], 1: [1, 30]}, 40)
    near = Inspection(1, "amp", scaler=tuple(row for row in near.scaler if row.updates <= 20))
    assert _report([far, near])[1] == []


def test_updates_when_the_last_line_of_a_rank_is_missing_then_no_rank_is_named() -> None:
    far, near = _job(_all(range(5, 101, 5), ranks=2), 100)
    near = Inspection(1, "amp", scaler=tuple(row for row in near.scaler if row.updates < 100))
    finding = _find([far, near])
    assert (finding.culprits.ranks, finding.details["skipped"]) == ([], 20)
    assert finding.summary.startswith("all ranks skipped 20 of the last 100")


def test_updates_when_lines_stand_for_many_then_ranks_are_not_told_apart_by_them() -> None:
    rows = _updates(0, range(1, 2501), 2500, scale=1.0)
    exact, later = rows[:2000], rows[2000:]
    ranks = [
        Inspection(rank, "finite", scaler=(*exact, *later[rank::20], rows[-1])) for rank in (0, 1)
    ]
    assert _find(ranks).culprits.ranks == []
    assert _find(ranks).details["reason"] == "skips"


def test_updates_when_one_of_two_models_is_bad_then_its_rank_is_named() -> None:
    finding = _find(_job({0: [1], 1: range(3, 41)}, 40, has_ops=False))
    assert (finding.culprits.ranks, finding.details["reason"]) == ([1], "skips")
    assert finding.summary.startswith("rank 1 skipped 38 of the last 40")


def test_updates_when_models_are_trained_apart_then_they_may_differ() -> None:
    skipped = {rank: [1 + rank, 9 + rank] for rank in range(4)}
    assert _report(_job(skipped, 40, has_ops=False))[1] == []


def test_updates_when_there_are_two_scalers_then_each_is_judged_for_itself() -> None:
    good, bad = (_job(_all(numbers), 40) for numbers in ([1, 2], range(3, 41)))
    both = [
        Inspection(
            one.rank,
            "amp",
            scaler=(
                *one.scaler,
                *(ScalerUpdate(**{**vars(row), "series": 1}) for row in other.scaler),
            ),
        )
        for one, other in zip(good, bad, strict=True)
    ]
    assert _find(both).details["skipped"] == 38


def test_updates_when_it_was_switched_on_twice_then_the_newer_one_counts() -> None:
    (before,), (after,) = _job({0: range(3, 41)}, 40), _job({0: []}, 40)
    newer = tuple(ScalerUpdate(**{**vars(row), "generation": 1}) for row in after.scaler)
    assert _report([Inspection(0, "amp", scaler=(*before.scaler, *newer))])[1] == []


# ------------------------------------------------------------------------------------ whose fault


def _event(rank: int, update: int, **changes: object) -> NotFinite:
    number = (update - 1) * OPS_AN_UPDATE + 2
    values: dict[str, object] = {
        "rank": rank, "side": "in", "number": number, "name": "all_reduce", "group": "0",
        "seq": number, "step": update - 1, "place": 0, "shape": (4,), "dtype": "float16",
        "nan": 0, "inf": 1,
    }  # fmt: skip
    return NotFinite(**values | changes)  # type: ignore[arg-type] # spread from a dict


def test_updates_when_one_rank_alone_gives_the_values_then_it_is_named() -> None:
    def events(rank: int) -> tuple[NotFinite, ...]:
        given = [_event(rank, update) for update in range(3, 41) if rank == 2]
        got = [_event(rank, update, side="out") for update in range(3, 41)]
        return (*given, *got)

    finding = _find(_job(_all(range(3, 41)), 40, events, "finite"))
    assert (finding.culprits.ranks, finding.victims.ranks) == ([2], "0-1,3")
    assert finding.confidence is Confidence.LIKELY
    assert "; rank 2 alone gave some, first to all_reduce #8 of group 0" in finding.summary
    assert finding.remedies[0].startswith("look at the batches")


@pytest.mark.parametrize(
    "who", [lambda update, rank: True, lambda update, rank: update % 4 == rank]
)
def test_updates_when_all_ranks_give_the_values_then_none_is_named(
    who: Callable[[int, int], bool],
) -> None:
    def events(rank: int) -> tuple[NotFinite, ...]:
        return tuple(_event(rank, update) for update in range(3, 41) if who(update, rank))

    finding = _find(_job(_all(range(3, 41)), 40, events, "finite"))
    assert (finding.culprits.ranks, finding.confidence) == ([], Confidence.CERTAIN)
    assert not any("--inspect finite" in text for text in finding.remedies)


def test_not_finite_when_a_check_drops_the_step_then_nothing_is_found() -> None:
    def events(rank: int) -> tuple[NotFinite, ...]:
        return (_event(rank, 7, nan=1),)

    assert _report(_job(_all([7]), 40, events, "finite", scale=None, source="guard"))[1] == []


def test_not_finite_when_a_check_has_skipped_before_then_later_values_count() -> None:
    def events(rank: int) -> tuple[NotFinite, ...]:
        return tuple(_event(rank, number, nan=1) for number in (7, 50) if rank == 1)

    _, (finding,) = _report(_job(_all([7]), 40, events, "finite", scale=None, source="guard"))
    assert (finding.code, finding.culprits.ranks) == ("V502", [1])
    assert finding.details["step"] == 49


def test_not_finite_when_only_one_rank_skips_the_step_then_both_are_told_root_first() -> None:
    def events(rank: int) -> tuple[NotFinite, ...]:
        first = (_event(rank, 7, nan=1),) if rank == 1 else (_event(rank, 7, nan=1, side="out"),)
        return (*first, *(_event(rank, number, nan=1) for number in (8, 9)))

    skipped = {rank: [7] if rank == 1 else [] for rank in range(3)}
    inspections = _job(skipped, 40, events, "finite", scale=None, source="guard")
    findings = _report(inspections)[1]
    assert [one.code for one in findings] == ["V502"]
    assert findings[0].culprits.ranks == [1]


# --------------------------------------------------------------------------------- the algorithm


def test_series_when_rows_are_few_then_counts_are_those_of_the_last_row_before() -> None:
    (inspection,) = _job({0: [3, 9]}, 60)
    ((_, by_rank),) = list_series([inspection]).items()
    series = by_rank[0]
    assert [series.count_skips(number) for number in (0, 2, 3, 8, 9, 60)] == [0, 0, 1, 1, 2, 2]
    assert series.list_skips(60) == {3, 9}
    assert series.list_skips(8) == {3}
    assert series.count_exact() == 60
    assert find_skipping(series, Policy()) is None
