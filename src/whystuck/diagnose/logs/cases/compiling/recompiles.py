"""P508 and H119 by what torch prints of code that it compiles again (TORCH_LOGS=recompiles)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.compiling.recompiled_steps import find_compiled_steps
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.cases.slow_steps import list_slow_steps
from whystuck.diagnose.logs.story import BUSY, NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_LIMIT = "torch._dynamo hit config."
# So many slow steps show that compiles cost; steps that are so far apart are of something else.
_LEAST_SLOW, _FAR = 2, 10
_NS_PER_MS = 1_000_000
# A wait for a rank that compiles begins when the others come to the next collective: in the same
# step, or shortly before the rank prints that it begins.
_BEFORE_NS, _AFTER_NS = 120_000_000_000, 30_000_000_000
_ADVICE = (
    (
        "make what the guard compares a tensor or a constant, or mark the size that changes: "
        "`torch._dynamo.mark_dynamic(x, 0)`, `torch.compile(..., dynamic=True)`"
    ),
)


def make_recompiles(view: LogView) -> Iterator[Case]:
    """Make the case of a function that is compiled again and again, or while others wait for it."""
    told = [event for event in view.list_signatures("dynamo.recompile") if is_said(event)]
    if not told:
        yield from _make_limited(view)
        return
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    if waits:
        yield from _make_awaited(told, waits)
    else:
        yield from _make_repeated(view, told)


def _make_awaited(told: Sequence[LogEvent], waits: Sequence[LogEvent]) -> Iterator[Case]:
    """Make the case of the one rank that compiled when the wait of others began.

    A rank prints when it begins, and never when it is done: so only the time tells which of several
    it was, and where several compiled, all of them may have.
    """
    (rank, *others), waiting = list_ranks(told) or (-1,), set(list_ranks(waits))
    last = told[-1]
    begun = [_find_begin(event) for event in waits]
    is_then = last.time is not None and any(
        one is not None
        and event.time is not None
        and event.time.clock == last.time.clock
        and -_AFTER_NS <= one - last.time.ns <= _BEFORE_NS
        for event, one in zip(waits, begun, strict=True)
    )
    if rank < 0 or others or rank in waiting or not is_then:
        return
    yield Case(
        code=codes.COMPILE_DIVERGENCE,
        summary=f"rank {rank} compiled {last.groups['func']} again ({last.groups['place']}), which "
        f"no other rank says: {name_ranks(sorted(waiting)) if waiting else 'others'} waited from "
        "then on until the time limit",
        tier=BUSY,
        ranks=(rank,),
        victims=tuple(sorted(waiting - {-1})),
        lines=(*told[-2:], *waits[:2]),
        time=find_time(waits),
        confidence=Confidence.LIKELY,
        details={"state": "running"},
        remedies=_ADVICE,
    )


def _find_begin(event: LogEvent) -> int | None:
    """Return when a wait began that ran into its limit, in ns."""
    limit = event.groups.get("ms") or event.groups.get("to") or ""
    if event.time is None or not limit.isdecimal():
        return None
    return event.time.ns - int(limit[:12]) * _NS_PER_MS


def _make_repeated(view: LogView, told: Sequence[LogEvent]) -> Iterator[Case]:
    """Make the case of a function that was compiled as often as it may be, or in slow steps.

    Who asks torch to tell of it looks for what it costs; without that, the limit says little.
    """
    compiles = view.list_signatures("progress.compile")
    limits = [event for event in compiles if _LIMIT in event.text]
    if not limits:
        yield from _make_slow_steps(view, told)
        return
    last = told[-1]
    yield Case(
        code=codes.RECOMPILATION,
        summary=f"{last.groups['func']} ({last.groups['place']}) is compiled again and again, up "
        "to the limit: a step in which its guard fails takes as long as the compiler does",
        tier=NOTE,
        lines=(*told[-2:], *limits[:_MAX_LINES]),
        time=find_time(limits),
        confidence=Confidence.LIKELY,
        details={"names": sorted({event.groups["func"] for event in told})[:_MAX_LINES]},
        remedies=_ADVICE,
    )


def _make_limited(view: LogView) -> Iterator[Case]:
    """Make the case of a function that met the limit of compiles, where some steps are slow.

    The limit alone says little: what it is told of may be cheap, or long over. Steps that are slow
    at one distance are those of a save or an evaluation.
    """
    limits = [event for event in view.list_signatures("table.compile_limit") if is_said(event)]
    waits = view.list_signatures(*WAITS, "table.saving", "progress.saved", "progress.took")
    slow = next(list_slow_steps(view), None) if limits and not any(waits) else None
    if slow is None or len(slow.slow) < _LEAST_SLOW or slow.distance >= _FAR:
        return
    last = limits[-1]
    reasons = [
        event for event in view.list_signatures("table.compile_reason") if event.row > last.row
    ]
    why = f": {reasons[0].groups['reason'].rstrip('. ')}" if reasons else ""
    yield Case(
        code=codes.RECOMPILATION,
        summary=f"{last.groups['func']} ({last.groups['place']}) is compiled again and again, up "
        f"to the limit{why}; some steps take {slow.slow_s:.3g} s, others {slow.usual_s:.3g} s",
        tier=NOTE,
        lines=(last, *reasons[:1], *slow.slow[:2]),
        time=find_time(limits),
        confidence=Confidence.LIKELY,
        details={"names": sorted({event.groups["func"] for event in limits})[:_MAX_LINES]},
        remedies=_ADVICE,
    )


def _make_slow_steps(view: LogView, told: Sequence[LogEvent]) -> Iterator[Case]:
    """Make the case of steps that are slow where a function is compiled, and only there."""
    slow = find_compiled_steps(view)
    if slow is None:
        return
    own = [event for event in told if event.groups["func"] == slow.func]
    how = (
        f"and again: steps in which it is take {slow.compiled_s:.3g} s, others {slow.usual_s:.3g} s"
        if slow.usual_s
        else f"in every step, as {slow.guard} changes: a step takes {slow.compiled_s:.3g} s"
    )
    yield Case(
        code=codes.RECOMPILATION,
        summary=f"{slow.func} ({slow.place}) is compiled again {how}",
        tier=NOTE,
        lines=(*own[-2:], *slow.lines[-_MAX_LINES + 2 :]),
        time=find_time(own),
        confidence=Confidence.LIKELY,
        details={"names": [slow.func]},
        remedies=_ADVICE,
    )
