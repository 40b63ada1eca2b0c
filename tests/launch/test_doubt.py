"""A job of which nobody can tell what it does is ended for an op that is pending, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystuck.collect.scene import Scene
from whystuck.evidence.finding import Report, Verdict
from whystuck.evidence.records import IncidentRecord
from whystuck.evidence.sections import RankClass, Timeline, TimelineOp
from whystuck.launch.incidents.incident import Incident

LIMIT_S = 20.0


def _make(tmp_path: Path, verdict: Verdict, *states: str) -> Incident:
    classes = [RankClass(ranks="0", state=state, op="all_reduce") for state in states]
    op = TimelineOp(sequence=1, op="all_reduce", classes=classes)
    shown = Timeline(group="0", desc="", members="0-1", recorded=1, ops=[op])
    report = Report(verdict=verdict, timeline=[shown])
    record = IncidentRecord(kind="stall", opened_ns=0, world_size=2)
    return Incident(tmp_path, tmp_path, record, Scene(tmp_path, []), report)


@pytest.mark.parametrize(
    ("states", "is_stuck"),
    [
        ((), False),
        (("done", "end unknown"), False),
        (("done", "absent", "unknown"), False),
        (("done", "pending"), True),
        (("started",), True),
    ],
)
def test_nobody_can_tell_then_only_a_pending_op_makes_it_stuck(
    tmp_path: Path, states: tuple[str, ...], is_stuck: bool
) -> None:
    incident = _make(tmp_path, Verdict.INCONCLUSIVE, *states)
    assert incident.is_surely_stuck(6 * LIMIT_S, LIMIT_S) is is_stuck
    assert not incident.is_surely_stuck(4 * LIMIT_S, LIMIT_S)


def test_verdict_that_is_sure_needs_no_op(tmp_path: Path) -> None:
    assert _make(tmp_path, Verdict.STUCK).is_surely_stuck(LIMIT_S, LIMIT_S)
    assert not _make(tmp_path, Verdict.WAITING, "pending").is_surely_stuck(9 * LIMIT_S, LIMIT_S)


def test_no_report_then_it_is_not_ended(tmp_path: Path) -> None:
    record = IncidentRecord(kind="stall", opened_ns=0, world_size=2)
    incident = Incident(tmp_path, tmp_path, record, Scene(tmp_path, []))
    assert not incident.is_surely_stuck(9 * LIMIT_S, LIMIT_S)
