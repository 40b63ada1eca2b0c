"""Runs checks, each in a process of its own and with a deadline, and gathers what they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec.structs import replace

from whystuck.check.apart import Apart, Tell, start_apart, wait_apart
from whystuck.check.check import Check, Context
from whystuck.check.compute.torch_check import TorchCheck, run_torch_checks
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.nodes.checks import CheckResult, Outcome

OnProgress = Callable[[int, int], None]


def run_checks(
    checks: Sequence[Check],
    context: Context,
    on_progress: OnProgress = lambda _done, _all: None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[CheckResult]:
    """Make checks.

    Those that need nothing for themselves run side by side, then the others one after the other.

    Args:
        checks: The checks.
        context: What they are told.
        on_progress: Called with the number of checks that are over, and of all.
        is_over: Asked again and again whether to leave the rest.

    Returns:
        The results, in the order of the checks; those that there are, when it was over before.
    """
    parts = [part for check in checks for part in check.split(context)]
    found: dict[int, CheckResult] = {}

    def take(results: Iterable[tuple[Check, CheckResult]]) -> None:
        for part, result in results:
            found[id(part)] = replace(result, node=context.node)
            on_progress(len(found), len(parts))

    by_torch = [part for part in parts if isinstance(part, TorchCheck)]
    plain = [part for part in parts if not isinstance(part, TorchCheck)]
    take(_run_beside([part for part in plain if not part.is_alone], context, is_over))
    for part in plain:
        if part.is_alone:
            take(_run_beside([part], context, is_over))
    take(_run_torch(by_torch, context, is_over))
    return [found[id(part)] for part in parts if id(part) in found]


def _run_beside(
    parts: Sequence[Check], context: Context, is_over: Callable[[], bool]
) -> Iterator[tuple[Check, CheckResult]]:
    """Run checks side by side."""
    if is_over():
        return
    works: dict[int, Check] = {}
    started: list[Apart] = []
    for part in parts:
        try:
            work = start_apart(partial(_run, part, context), _limit(part, context))
        except OSError as error:
            reason = f"no process can be had: {error.strerror or error}"
            yield part, _make_incomplete(part, reason)
            continue
        works[work.pid] = part
        started.append(work)
    for work in wait_apart(started, is_over):
        part = works[work.pid]
        yield part, _read_result(part, work, context)


def _run_torch(
    parts: Sequence[TorchCheck], context: Context, is_over: Callable[[], bool]
) -> Iterator[tuple[Check, CheckResult]]:
    """Run the checks that need torch, in one process that imports it."""
    if not parts or is_over():
        return
    deadline_s = context.policy.find_deadline("torch")

    def work(tell: Tell) -> None:
        run_torch_checks(parts, context, lambda result: tell(msgspec.json.encode(result)))

    try:
        started = start_apart(work, deadline_s)
    except OSError as error:
        reason = f"no process can be had: {error.strerror or error}"
        yield from ((part, _make_incomplete(part, reason)) for part in parts)
        return
    for done in wait_apart([started], is_over):
        told = {result.name: result for result in _decode(done)}
        for part in parts:
            late = part.make_late_result(context, deadline_s)
            if not done.is_late:
                late = _make_incomplete(part, "the check itself failed")
            yield part, told.get(part.name, late)


def _run(part: Check, context: Context, tell: Tell) -> None:
    """Run one check in its process."""
    reason = part.why_skipped(context)
    if reason:
        result = replace(_make_incomplete(part, reason), outcome=Outcome.SKIPPED)
    else:
        try:
            result = part.run(context)
        except Exception as error:  # noqa: BLE001 - a fault of ours costs one check
            result = _make_incomplete(part, f"the check itself failed: {error!r}")
    tell(msgspec.json.encode(result))


def _limit(part: Check, context: Context) -> float:
    return context.policy.find_deadline(part.name)


def _read_result(part: Check, work: Apart, context: Context) -> CheckResult:
    told = next(iter(_decode(work)), None)
    if told is None and work.is_late:
        told = part.make_late_result(context, work.deadline_s)
    return replace(told or _make_incomplete(part, "the check itself failed"), took_s=work.took_s)


def _decode(work: Apart) -> Iterator[CheckResult]:
    for line in work.lines:
        with suppress(msgspec.MsgspecError):
            yield decode_json(line, CheckResult)


def _make_incomplete(part: Check, reason: str) -> CheckResult:
    outcome = Outcome.INCOMPLETE
    return CheckResult(name=part.name, subject=part.subject, outcome=outcome, reason=reason)
