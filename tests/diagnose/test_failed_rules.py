"""A rule or a part of a report that raises costs that part, and never the report."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.diagnose.op_scenes import Logged
from tests.diagnose.scenes import MODULE, Job, at
from tests.diagnose.test_stuck_by_ops import BARRIER_IN_SAVE, LOSS, hang, job, loop
from tests.diagnose.traces.test_p5_rules import make_devices, make_steps

from whystuck.cli.output import exit_code_for
from whystuck.diagnose import engine, verdict
from whystuck.diagnose.context.divergences import Divergences
from whystuck.diagnose.context.facts.exceptions import Exceptions
from whystuck.diagnose.context.facts.exits import Exits
from whystuck.diagnose.context.facts.logs import Logs
from whystuck.diagnose.context.facts.movement import Movement
from whystuck.diagnose.context.facts.ops import Ops
from whystuck.diagnose.context.facts.processes import Processes
from whystuck.diagnose.context.facts.ranks import Ranks
from whystuck.diagnose.context.facts.stacks import Stacks
from whystuck.diagnose.context.facts.waits import Waits
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.context.suspects.suspects import Suspects
from whystuck.diagnose.context.wait_cycle import WaitCycle
from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Rule
from whystuck.diagnose.rules import RULES
from whystuck.diagnose.rules.crash.c207_preempted import Preempted
from whystuck.diagnose.rules.hang.h102_extra_collective import ExtraCollective
from whystuck.diagnose.rules.hang.h104_group_order_cycle import GroupOrderCycle
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.finding import Confidence, Finding, Report, Severity, Verdict
from whystuck.evidence.model import Evidence
from whystuck.evidence.traces.tables import RankHeader, TraceSummary
from whystuck.pipeline import diagnose_evidence, render_all
from whystuck.report.json import render_json
from whystuck.report.markdown import render_markdown
from whystuck.report.text import render_text

STEP = at("/job/train.py", 10)


def extra_barrier() -> Evidence:
    """Rank 0 makes a barrier alone when it saves."""
    made = hang(loop(job()), [0], "barrier", BARRIER_IN_SAVE)
    return hang(made, [1, 2, 3], "all_reduce", LOSS).evidence()


def sleeping() -> Evidence:
    """Rank 2 sleeps in the user's code."""
    made = Job().steps().waits([0, 1, 3]).stands(2, [at("/job/data.py", 5, "pause"), MODULE])
    return made.evidence()


def raising() -> Evidence:
    """Rank 1 raises, and its peers lose the connection."""
    made = Job().of_kind("exit", command_exit=1).steps()
    made.raises(1, "ValueError", "bad sample", [at("/job/data.py", 7, "load")]).ends(1, code=1)
    for rank in (0, 2, 3):
        made.raises(rank, "RuntimeError", "Connection closed by peer [10.0.0.1]:1", [STEP])
        made.ends(rank, code=1)
    return made.evidence()


def healthy() -> Evidence:
    """A job that ended well."""
    made = Job().of_kind("exit", command_exit=0).steps()
    for rank in range(4):
        made.ends(rank, code=0)
    return made.evidence()


def logged() -> Evidence:
    """Ranks with op logs; rank 3 does not come."""
    made = Logged().steps().waits([0, 1, 2])
    made.job.stands(3, [at("/job/data.py", 5, "pause"), MODULE])
    return made.evidence()


def slow_input() -> Evidence:
    """Traces of ranks that wait for data."""
    steps = make_steps({rank: {"data_wait": 60} for rank in range(2)})
    tables = {"step_time": steps, "temporal_breakdown": make_devices([0, 1])}
    ranks = tuple(RankHeader(rank=rank, events=1, device_events=1) for rank in range(2))
    return Evidence(traces=TraceSummary(ranks, tables))


SCENES: dict[str, Callable[[], Evidence]] = {
    "extra barrier": extra_barrier,
    "sleeping": sleeping,
    "raising": raising,
    "healthy": healthy,
    "op logs": logged,
    "traces": slow_input,
}
TRUTH = {"extra barrier": {0}, "sleeping": {2}, "raising": {1}, "op logs": {3}}


VALUES = (
    Exceptions,
    Ops,
    Ranks,
    Stacks,
    Processes,
    Exits,
    Waits,
    Logs,
    Movement,
    Divergences,
    WaitCycle,
    Suspects,
)


def boom(*_: object) -> Any:
    raise ZeroDivisionError("secret token=hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")


def list_shared() -> list[tuple[type, str]]:
    """Return all that rules share; to make a value that holds others cannot raise."""
    made = {
        name
        for one in Scene.__mro__
        for name, value in vars(one).items()
        if isinstance(value, functools.cached_property)
        and value.func.__annotations__["return"] in {kind.__name__ for kind in VALUES}
    }
    assert len(made) == len(VALUES)
    return [
        (owner, name)
        for owner in (*Scene.__mro__, *VALUES)
        for name, value in sorted(vars(owner).items())
        if isinstance(value, (property, functools.cached_property))
        and name not in {*made, "has_moved_again"}
    ]


def drop_failed(report: Report) -> list[Finding]:
    return [item for item in report.findings if item.code != "E902"]


def expect_honest(report: Report, before: Report, name: str) -> None:
    """Expect all forms of the report, no health, the right code, and nobody innocent as sure."""
    assert report.verdict is not Verdict.HEALTHY
    found = drop_failed(report)
    is_found = any(item.severity is Severity.ERROR for item in found)
    if report.verdict is not Verdict.SLOW:
        assert exit_code_for(report) == (1 if is_found else 3)
    for item in found:
        if item.confidence is Confidence.CERTAIN:
            assert set(item.culprits.ranks) <= TRUTH.get(name, set()) or item in before.findings
    assert "note[E902]" in render_text(report, color=False, width=100)


@pytest.mark.parametrize("name", SCENES)
def test_scene_gives_a_report_without_failures(name: str) -> None:
    report = diagnose(SCENES[name]())

    assert not [item for item in report.findings if item.code == "E902"]
    assert bool(report.findings) == (name != "healthy")


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_rule_that_raises_costs_its_own_finding(
    monkeypatch: pytest.MonkeyPatch, rule: type[Rule], name: str
) -> None:
    evidence = SCENES[name]()
    before = diagnose(evidence)
    monkeypatch.setattr(rule, "check", boom)

    report = diagnose_evidence(evidence)

    failed = [item for item in report.findings if item.code == "E902"]
    if not failed:
        assert rule.needs
        assert not any(len(getattr(evidence, table)) for table in rule.needs)
        return
    (note,) = failed
    assert (note.name, note.severity, note.details["rules"]) == (
        "rule-failed",
        Severity.NOTE,
        [rule.code],
    )
    assert "aaaaaaaa" not in str(report)
    others = {item.code for item in before.findings} - {rule.code}
    assert others <= {item.code for item in report.findings}
    expect_honest(report, before, name)


@pytest.mark.parametrize("kind", [MemoryError, RecursionError, KeyError, SystemError])
def test_any_rule_may_raise_anything(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def check(*_: object) -> Iterator[Finding]:
        raise kind

    monkeypatch.setattr(GroupOrderCycle, "check", check)

    report = diagnose(extra_barrier())

    assert [item.code for item in report.findings] == ["H102", "E902"]
    assert report.findings[1].details["exception"] == kind.__name__


def test_recursion_without_end_is_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def recurse(*_: object) -> Iterator[Finding]:
        return recurse()

    monkeypatch.setattr(GroupOrderCycle, "check", recurse)

    report = diagnose(extra_barrier())

    assert [item.code for item in report.findings] == ["H102", "E902"]


def test_interrupt_is_no_failure_of_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: object) -> Iterator[Finding]:
        raise KeyboardInterrupt

    monkeypatch.setattr(GroupOrderCycle, "check", check)

    with pytest.raises(KeyboardInterrupt):
        diagnose(extra_barrier())


def test_what_a_rule_found_before_it_raised_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    check = ExtraCollective.check

    def find_then_raise(self: Rule, scene: Scene, policy: Policy) -> Iterator[Finding]:
        yield from check(self, scene, policy)  # type: ignore[arg-type]
        boom()

    monkeypatch.setattr(ExtraCollective, "check", find_then_raise)

    assert [item.code for item in diagnose(extra_barrier()).findings] == ["H102", "E902"]


def test_note_names_the_exception_and_the_place_in_whystuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whystuck.diagnose.context.facts.waits.find_waits", boom)

    report = diagnose(sleeping())

    (note,) = [item for item in report.findings if item.code == "E902"]
    assert note.details["exception"] == "ZeroDivisionError"
    place = note.details["place"]
    assert place.startswith("pending (whystuck/diagnose/context/facts/waits.py:")
    assert note.summary.startswith(
        f"whystuck itself raised ZeroDivisionError in {place}; not judged: "
    )
    assert note.because[0].text.startswith("ZeroDivisionError: secret token=")


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize(("owner", "shared"), list_shared())
def test_analysis_that_raises_costs_what_uses_it(
    monkeypatch: pytest.MonkeyPatch, owner: type, shared: str, name: str
) -> None:
    evidence = SCENES[name]()
    before = diagnose(evidence)
    monkeypatch.setattr(owner, shared, property(boom))

    report = diagnose(evidence)

    failed = [item for item in report.findings if item.code == "E902"]
    if failed:
        assert len(failed) == 1
        expect_honest(report, before, name)
    else:
        assert report.findings == before.findings


PARTS = (
    "list_ruled_out",
    "merge_stacks",
    "build_timeline",
    "find_parting",
    "set_teardown_apart",
    "summarize_logs",
    "list_executed",
    "describe_traces",
    "classify_end",
    "is_only_traces",
    "measure_coverage",
    "judge",
    "list_gaps",
    "_quote",
    "is_doubtful",
)


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("part", PARTS)
def test_part_that_raises_is_left_out(
    monkeypatch: pytest.MonkeyPatch, part: str, name: str
) -> None:
    evidence = SCENES[name]()
    before = diagnose(evidence)
    for module in (engine, verdict):
        if hasattr(module, part):
            monkeypatch.setattr(module, part, boom)

    report = diagnose(evidence)

    assert {item.code for item in before.findings} <= {item.code for item in report.findings}
    if any(item.code == "E902" for item in report.findings):
        assert report.findings[-1].details["parts"] or report.findings[-1].details["rules"]
        expect_honest(report, before, name)


@pytest.mark.parametrize("name", sorted(TRUTH))
@pytest.mark.parametrize("explain", ["explain_hard", "explain_soft", "explain_alone"])
def test_explanation_that_raises_names_nobody(
    monkeypatch: pytest.MonkeyPatch, explain: str, name: str
) -> None:
    evidence = SCENES[name]()
    before = diagnose(evidence)
    monkeypatch.setattr(f"whystuck.diagnose.context.suspects.suspects.{explain}", boom)

    report = diagnose(evidence)

    if report != before:
        expect_honest(report, before, name)


def test_logs_that_cannot_be_judged_do_not_cost_what_ops_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whystuck.diagnose.context.facts.logs.LogView", boom)

    (first, *_, note) = diagnose(extra_barrier()).findings

    assert (first.code, first.culprits.ranks, note.code) == ("H102", [0], "E902")


def test_analysis_that_raises_is_tried_once() -> None:
    class Analysis:
        tries = 0

        @cached_property
        def value(self) -> int:
            self.tries += 1
            return 1 // (self.tries - self.tries)

        @cached_property
        def twice(self) -> int:
            return 2 * self.value

    made = Analysis()
    places = set()
    for name in ("twice", "value", "twice", "value"):
        with pytest.raises(ZeroDivisionError) as raised:
            getattr(made, name)
        places.add(raised.traceback[-1].name)

    assert made.tries == 1
    assert places == {"value"}


def test_analysis_that_raised_holds_no_tables() -> None:
    class Analysis:
        @cached_property
        def value(self) -> int:
            table = np.zeros(10)
            return int(table[10])

    made = Analysis()
    with pytest.raises(IndexError) as raised:
        _ = made.value

    assert "table" not in raised.traceback[-1].frame.f_locals


@pytest.mark.parametrize("name", SCENES)
def test_all_forms_of_a_report_show_the_failure(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Ops, "groups", property(boom))
    monkeypatch.setattr(Scene, "traces", property(boom))

    report = diagnose(SCENES[name]())

    assert "note[E902]" in render_all(report)["report.html"].decode()
    assert "note[E902]" in render_markdown(report)
    assert json.loads(render_json(report))["findings"][-1]["name"] == "rule-failed"
    redacted = render_text(report, color=False, width=100, redact=True)
    assert "ZeroDivisionError" in redacted


def test_failure_in_many_rules_is_one_note() -> None:
    class Other(GroupOrderCycle):
        code = "H198"

    rules: list[type[Rule]] = []
    for number in range(7):
        rule = type(f"Rule{number}", (Other,), {"code": f"H19{number}", "check": boom})
        rules.append(rule)

    report = diagnose(extra_barrier(), rules=rules)

    (note,) = report.findings
    assert note.summary.endswith("; not judged: H190, H191, H192, H193 and 3 more")
    assert note.details["rules"] == [rule.code for rule in rules]
    assert report.verdict is Verdict.INCONCLUSIVE


def test_what_another_rule_might_explain_away_is_only_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = diagnose(sleeping()).findings[0]
    monkeypatch.setattr(Preempted, "needs", ())
    monkeypatch.setattr(Preempted, "check", boom)

    first = diagnose(sleeping()).findings[0]

    assert (first.code, before.confidence) == (before.code, Confidence.LIKELY)
    assert first.confidence is Confidence.POSSIBLE
