"""P509 regression."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.traces.columns import read_table
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity
from whystuck.evidence.ranks import name_ranks
from whystuck.evidence.table import Table
from whystuck.evidence.traces.tables import TraceSummary

_NS_PER_MS = 1e6
_ALPHA = 0.05
# So many changes are listed, those first that explain most; the rest is one entry.
_MAX_CHANGES = 12
_MAX_TOLD = 3
_MAX_NAMES = 20
_MAX_NAME = 60
# What explains less of the change than this is part of the rest.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class _Step:
    """The one row of `diff_summary`."""

    row: dict[str, Any]

    @property
    def delta_ns(self) -> float:
        return float(self.row["b_step_ns"] - self.row["a_step_ns"])

    @property
    def share(self) -> float:
        return self.delta_ns / self.row["a_step_ns"] if self.row["a_step_ns"] else 0.0

    @property
    def is_known(self) -> bool:
        return not math.isnan(self.row["p_value"])

    @property
    def is_sure(self) -> bool:
        return bool(self.row["p_value"] < _ALPHA)

    @property
    def unit(self) -> str:
        return "the whole trace" if self.row["is_whole_trace"] else "a step"


class Regression(Rule):
    """The second of two runs is slower than the first.

    ## What it means

    The same job takes longer for a step than before. The report names what explains how much of
    it: kernels, ops, Python frames, and whether it is compute, communication that nothing hides,
    waits for data, or time in which nothing was recorded.

    ## How it is found

    By `whystuck trace diff A B`. Each ns of a step belongs to one name: to the kernel that runs on
    a device, else to the innermost op, call or Python frame of the host; so the differences add up
    to that of the step. What is listed nowhere is the `rest`. A sample is the mean of a step over
    all ranks. Chance is ruled out by a permutation test of means and of places in the order of
    samples; steps in a row that are alike count as fewer. With one step each, the same ranks of
    both runs are the samples, from four on. With less, the significance is unknown: then the
    finding is `possible`, and a warning. A large difference that may be chance leaves the verdict
    open.

    It is an error from `--threshold` percent on, a note below. A run that is faster is a note. A
    rank is named when its own time, without waits for communication, explains at least half of the
    change, when that is significant, and when the other ranks, at least as many, did not change.

    Of texts that people paste: the pace that a loop prints for steps of the same numbers in two
    runs, whose names stand before the lines (`old:`, `24.03:`), where one takes a tenth longer. Of
    these, the `details` are `runs` and `times`.

    Of the other `details`, `step_ms` has the mean step of both runs and the 95 % interval of the
    difference, empty when it is unknown. `changes` lists `name`, `kind` (`kernel`, `copy`, `op`,
    `call`, `python`, `annotation`, `idle` or `rest`), the ms of a step in both runs, the
    difference, and its share of that of the step; the entries add up to it. `classes` is the same
    by class. `added` and `removed` are names of ops and kernels that only one of the runs has.

    ## False alarms

    Two runs on other machines, with another batch, or beside another load. Chance is measured
    within each run: what differs between any two runs of a job is not known from one of each.

    ## What to do

    Look at the first changes: an op that is new, that runs more often or that takes longer. Trace
    both runs again, in turns, to see that the difference stays.
    """

    code = codes.REGRESSION
    name = "regression"
    severity = Severity.ERROR
    needs = ("traces", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "look at the first changes listed, and at the ops around them in the tree of calls",
        "trace both versions again, in turns on the same machines, to see that it stays",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding when two runs were compared and a step takes another time."""
        for case in scene.story.of(self.code):
            yield replace(tell_case(self, case), severity=Severity.WARNING)
        traces = scene.evidence.traces
        summary = read_table(traces, "diff_summary")
        if len(summary) != 1:
            return
        step = _read_step(summary)
        is_large = abs(step.share) * 100 >= policy.regression_percent
        if step.is_sure or (is_large and not step.is_known):
            yield self._make(traces, step, is_large=is_large)

    def _make(self, traces: TraceSummary, step: _Step, *, is_large: bool) -> Finding:
        ranks = _slower_ranks(traces) if step.delta_ns > 0 else []
        who = f"{name_ranks(ranks)} alone: " if ranks else ""
        more = "longer" if step.delta_ns > 0 else "less"
        a_ms, b_ms = (step.row[f"{side}_step_ns"] / _NS_PER_MS for side in "ab")
        finding = self.make_finding(
            f"{who}{step.unit} takes {abs(step.share):.1%} {more} in B: {_ms(b_ms)} ms, "
            f"{_ms(a_ms)} ms in A",
            Confidence.LIKELY if step.is_known else Confidence.POSSIBLE,
            Blame(ranks=ranks),
            because=[Citation(text) for text in _explain(traces, step)],
            details=_detail(traces, step),
            measures={
                "delta_ms": round(step.delta_ns / _NS_PER_MS, 6),
                "delta_percent": round(step.share * 100, 3),
            },
        )
        if step.delta_ns > 0 and is_large:
            return finding
        return replace(finding, severity=Severity.NOTE, remedies=[])


def list_changes(traces: TraceSummary, step_delta_ns: float) -> list[dict[str, Any]]:
    """List what explains the change of a step, the largest first, and the rest as one entry.

    Args:
        traces: With the table `diff_changes`.
        step_delta_ns: The change of the step.

    Returns:
        Entries with ``name``, ``kind``, ``a_ms``, ``b_ms``, ``delta_ms`` and ``share``.
    """
    table = read_table(traces, "diff_changes")
    if not len(table):
        return []
    listed = np.abs(table["delta_ns"]) >= max(_LEAST_SHARE * abs(step_delta_ns), 1)
    first = np.flatnonzero(listed)[:_MAX_CHANGES]
    entries = [
        _entry(row[2], "idle" if row[1] == "rest" else row[1], row[3:6], step_delta_ns)
        for row in table.take(first).rows()
    ]
    rest = np.setdiff1d(np.arange(len(table)), first)
    sums = [float(table[name][rest].sum()) for name in ("a_ns", "b_ns", "delta_ns")]
    return [*entries, _entry("rest", "rest", sums, step_delta_ns)] if len(rest) else entries


def _entry(name: str, kind: str, ns: Sequence[float], step_delta_ns: float) -> dict[str, Any]:
    a_ms, b_ms, delta_ms = (round(value / _NS_PER_MS, 6) for value in ns)
    share = ns[2] / step_delta_ns if step_delta_ns else 0.0
    return {
        "name": name,
        "kind": kind,
        "a_ms": a_ms,
        "b_ms": b_ms,
        "delta_ms": delta_ms,
        "share": round(share, 4),
    }


def _detail(traces: TraceSummary, step: _Step) -> dict[str, Any]:
    row = step.row
    bounds = (row["low_ns"], row["high_ns"])
    known = not any(math.isnan(bound) for bound in bounds)
    classes = read_table(traces, "diff_classes")
    return {
        "step_ms": {
            "a": round(row["a_step_ns"] / _NS_PER_MS, 6),
            "b": round(row["b_step_ns"] / _NS_PER_MS, 6),
            "interval": [round(bound / _NS_PER_MS, 6) for bound in bounds] if known else [],
        },
        "changes": list_changes(traces, step.delta_ns),
        "classes": [
            _entry(name, "class", sums, step.delta_ns)
            for name, *sums in classes.rows()
            if any(sums)
        ],
        "added": list_names(traces, "added"),
        "removed": list_names(traces, "removed"),
        "p_value": row["p_value"] if step.is_known else None,
        "samples": {"unit": row["unit"], "a": row["a_steps"], "b": row["b_steps"]},
    }


def list_names(traces: TraceSummary, status: str) -> list[str]:
    """Name ops and kernels that only one of the runs has; ``status`` is `added` or `removed`."""
    found = []
    for name in ("diff_kernels", "diff_ops"):
        table = read_table(traces, name)
        if not len(table):
            continue
        is_wanted = (table["status"] == status) & np.isin(
            table["kind"].astype(str), ("op", "kernel", "copy")
        )
        found += table["name"][is_wanted].tolist()[:_MAX_NAMES]
    return found


def _slower_ranks(traces: TraceSummary) -> list[int]:
    table = read_table(traces, "diff_ranks")
    return [int(one) for one in table["rank"][table["is_slower"]]] if len(table) else []


def _explain(traces: TraceSummary, step: _Step) -> Iterator[str]:
    """Say what explains the change, and how sure it is."""
    classes = sorted(
        (row for row in read_table(traces, "diff_classes").rows() if row[3]),
        key=lambda row: -abs(row[3]),
    )
    parts = [f"{name} {_signed(delta)}" for name, _, _, delta in classes[:5]]
    yield f"of {_signed(step.delta_ns)}: {', '.join(parts)}"
    entries = list_changes(traces, step.delta_ns)
    for one in [one for one in entries if one["kind"] != "rest"][:_MAX_TOLD]:
        times = f"{_ms(one['a_ms'])} to {_ms(one['b_ms'])} ms"
        yield f"{_short(one['name'])} ({one['kind']}): {times}, {one['share']:.0%} of the change"
    yield _describe_chance(step)
    yield from _describe_names(traces)


def _describe_chance(step: _Step) -> str:
    row = step.row
    if not step.is_known:
        return (
            f"{row['a_steps']} and {row['b_steps']} steps are too few to tell it from chance: "
            "the significance is unknown"
        )
    count = f"{row['a_steps']} and {row['b_steps']} steps"
    if row["unit"] == "ranks":
        count = f"{row['a_ranks']} ranks, one step each"
    left_out = row["a_left_out"] + row["b_left_out"]
    told = f", without {left_out} that took far longer" if left_out else ""
    return f"p = {row['p_value']:.2g} by {count}{told}"


def _describe_names(traces: TraceSummary) -> Iterator[str]:
    told = []
    for status in ("added", "removed"):
        names = list_names(traces, status)
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            told.append(f"{status}: {_short(names[0])}{more}")
    if told:
        yield " · ".join(told)


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."


def _signed(ns: float) -> str:
    return f"{'+' if ns >= 0 else '-'}{_ms(abs(ns) / _NS_PER_MS)} ms"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004


def is_doubtful(table: Table, policy: Policy) -> bool:
    """Tell whether the second of two runs may well be slower, and nobody knows.

    Args:
        table: The table `diff_summary`, of one row.
        policy: From where on a difference matters.

    Returns:
        Whether a step takes much longer, by no more than may be chance.
    """
    step = _read_step(table)
    is_many = min(step.row["a_steps"], step.row["b_steps"]) >= policy.many_steps
    least = policy.large_doubt_percent if is_many else policy.doubt_percent
    return step.share * 100 >= max(policy.regression_percent, least) and not step.is_sure


def describe_same(table: Table, threshold_percent: float, *, is_open: bool = False) -> str:
    """Say that two runs that were compared differ by nothing that counts.

    Args:
        table: The table `diff_summary`, of one row.
        threshold_percent: From where on a change is told.
        is_open: Whether the difference is too large to say so.

    Returns:
        A sentence.
    """
    step = _read_step(table)
    a_ms, b_ms = (step.row[f"{side}_step_ns"] / _NS_PER_MS for side in "ab")
    reason = f"below {threshold_percent:g} %"
    if step.is_known:
        reason = f"which may be chance: {_describe_chance(step)}"
    return (
        f"{'a regression is possible' if is_open else 'no regression'}: {step.unit} takes "
        f"{_ms(a_ms)} ms in A and {_ms(b_ms)} ms in B ({step.share:+.1%}, {reason})"
    )


def _read_step(table: Table) -> _Step:
    return _Step({name: column.tolist()[0] for name, column in table.columns.items()})
