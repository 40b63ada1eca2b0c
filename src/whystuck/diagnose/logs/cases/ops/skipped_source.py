"""H127 where ranks come to one number with different calls, and who left one out is shown.

Source shows it, or the rank itself says that it has no data for a call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import is_said
from whystuck.diagnose.logs.story import Case
from whystuck.diagnose.logs.told_ops import ToldOp
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
# What is reduced of a step beside its gradients: a few numbers, each with its own meaning.
_FEW = 64
_SIGNATURE = "source.skipped"
_SAID = ("py.left_out", "table.none_left")
# How a rank says that it jumps over the rest of its step.
_JUMPS = re.compile(
    r"(?:\bcontinu(?:e|ing)|\breturn(?:s|ing)?|\bskip(?:s|ped|ping)?(?: (?:the |this )?(?:step|rest"
    r"|(?:mini-?|micro-?)?batch|iteration|it))?|\bnext (?:step|batch|iteration))[\s.!)\]]*$",
    re.IGNORECASE,
)
_RANK = re.compile(r"(?<![a-z_])rank[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)


def tell_skipped(view: LogView, ops: Sequence[ToldOp], case: Case | None) -> Case | None:
    """Tell the same of ranks that jump over the call of the others, by source that is shown.

    At the number of the call that they left out they are in the next one, whose size or op is
    another. Of calls of one kind, the one that is left out is told by its few elements.
    """
    if case is None or case.code not in (codes.SHAPE_MISMATCH, codes.OP_MISMATCH):
        return case
    # One line may tell it in two ways.
    rows = {(one.artifact, one.row): one for one in view.list_signatures(*_SAID) if is_said(one)}
    said = [*rows.values()]
    # What was said of an earlier step, in which nobody hung, is no reason.
    is_once = len(said) == 1 and said[0].count == 1 and not said[0].is_past
    speaker = (_find_speaker(said[0]),) if is_once else ()
    if not case.ranks and set(speaker) < {op.rank for op in ops}:
        # Of two, nothing else tells which one is the odd one.
        victims = tuple(sorted({op.rank for op in ops} - {*speaker}))
        odd = replace(case, ranks=speaker, victims=victims)
        told = _tell_odd(view, ops, odd, said, speaker)
        return told if told.code == codes.SKIPPED_COLLECTIVE else case
    return _tell_odd(view, ops, case, said, speaker)


def _find_speaker(event: LogEvent) -> int:
    """Return the rank that a line is of, by a prefix or as the only one that it names."""
    named = _RANK.findall(event.text)
    if event.rank >= 0 or len(named) != 1:
        return event.rank
    return int(named[0])


def _tell_odd(
    view: LogView,
    ops: Sequence[ToldOp],
    case: Case,
    said: Sequence[LogEvent],
    speaker: tuple[int, ...],
) -> Case:
    own = [op for op in ops if op.rank in case.ranks]
    rest = [op for op in ops if op.rank not in case.ranks]
    guards = [
        event
        for event in view.list_signatures(_SIGNATURE)
        if is_said(event) and all(op.op == event.groups["op"] for op in rest)
    ]
    if not own or not rest or not _are_next(own, rest):
        return case
    if len(guards) == 1:
        told = guards[0].groups
        why = f"the source leaves it out by `if {told['test']:.80}: {told['jump']}`"
        return _make_case(case, own[0], rest[0], guards[0], why)
    if guards or not speaker or speaker != case.ranks:
        return case
    # Two calls of unlike ops may be either's mistake, but for one that jumps over a few numbers.
    is_jump = _JUMPS.search(said[0].text) is not None and _are_few(own, rest)
    if own[0].op != rest[0].op and not is_jump:
        return case
    why = f"it says that it has nothing for it: `{said[0].text.strip():.100}`"
    return _make_case(case, own[0], rest[0], said[0], why)


def _are_next(own: Sequence[ToldOp], rest: Sequence[ToldOp]) -> bool:
    """Tell whether a few numbers, or another op, are what the ranks left out."""
    return own[0].op != rest[0].op or _are_few(own, rest)


def _are_few(own: Sequence[ToldOp], rest: Sequence[ToldOp]) -> bool:
    """Tell whether the others reduce a few numbers, and the ranks are in a larger call."""
    sizes = [prod(op.sizes[0]) if op.sizes[0] else 0 for op in (*rest, *own)]
    return 0 < max(sizes[: len(rest)]) <= _FEW < min(sizes[len(rest) :])


def _make_case(case: Case, own: ToldOp, rest: ToldOp, line: LogEvent, why: str) -> Case:
    many = len(case.ranks) > 1
    return replace(
        case,
        code=codes.SKIPPED_COLLECTIVE,
        summary=f"{name_ranks(case.ranks)} left out {rest.op} {rest.seq}, in which the others "
        f"wait, and {'are' if many else 'is'} in the next call: {why}",
        lines=(line, *case.lines)[:_MAX_LINES],
        details={"skipped": rest.op, "went_on_to": own.op},
    )
