"""Runs checks, each in a process of its own and with a deadline, and gathers what they tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

import msgspec
from msgspec.structs import replace

from whystuck.check.apart import Apart, Tell, make_pipe, start_apart, wait_apart
from whystuck.check.check import Check, Context
from whystuck.check.compute.torch_check import TorchCheck, run_torch_checks
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.nodes.checks import CheckResult, Outcome

OnProgress = Callable[[int, int], None]
_FAILED = "the check itself failed"


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
    # Torch takes seconds to import: it does so beside the others, and measures after them.
    with _TorchRun(by_torch, context) as torch_run:
        take(_run_beside([part for part in plain if not part.is_alone], context, is_over))
        for part in plain:
            if part.is_alone:
                take(_run_beside([part], context, is_over))
        take(torch_run.finish(is_over))
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


class _TorchRun:
    """The checks that need torch, in one process that imports it at once and measures later."""

    def __init__(self, parts: Sequence[TorchCheck], context: Context) -> None:
        self._parts = parts
        self._context = context
        policy = context.policy
        self._deadline_s = policy.find_deadline("torch-deep" if context.is_deep else "torch")
        if context.meeting is not None:
            self._deadline_s += policy.find_deadline("nodes")
        self._started: Apart | None = None
        self._problem = ""
        self._gate = -1

    def __enter__(self) -> Self:
        """Start it, if there is anything to do."""
        if not self._parts:
            return self
        shut, self._gate = make_pipe()

        def work(tell: Tell) -> None:
            told = lambda result: tell(msgspec.json.encode(result))  # noqa: E731 - passed on
            run_torch_checks(self._parts, self._context, told, shut)

        try:
            self._started = start_apart(work, self._deadline_s, shut)
        except OSError as error:
            self._problem = f"no process can be had: {error.strerror or error}"
        finally:
            os.close(shut)
        return self

    def __exit__(self, *_problem: object) -> None:
        """End it where nobody waited for it."""
        self._open_gate()
        if self._started is not None:
            list(wait_apart([self._started], lambda: True))

    def _open_gate(self) -> None:
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    def finish(self, is_over: Callable[[], bool]) -> Iterator[tuple[Check, CheckResult]]:
        """Let it measure, and yield what it told."""
        self._open_gate()
        if self._problem:
            yield from ((part, _make_incomplete(part, self._problem)) for part in self._parts)
        started, self._started = self._started, None
        for done in wait_apart([started] if started else [], is_over):
            told = {result.title: result for result in _decode(done)}
            for part in self._parts:
                late = part.make_late_result(self._context, self._deadline_s)
                if not done.is_late:
                    late = _make_incomplete(part, _FAILED)
                yield part, told.get(late.title, late)


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
    return replace(told or _make_incomplete(part, _FAILED), took_s=work.took_s)


def _decode(work: Apart) -> Iterator[CheckResult]:
    for line in work.lines:
        with suppress(msgspec.MsgspecError):
            yield decode_json(line, CheckResult)


def _make_incomplete(part: Check, reason: str) -> CheckResult:
    outcome = Outcome.INCOMPLETE
    return CheckResult(name=part.name, subject=part.subject, outcome=outcome, reason=reason)
