"""H101, H102, H105, H106, H110 and H127 by what the watchdogs of several ranks print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.alignment import align, split_by
from whystuck.diagnose.algorithms.ops.divergence import Divergence, find_divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.ops.groups import collect_groups
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.logs.cases.ops.odd_ones import add_alike, choose_by_past, choose_odd
from whystuck.diagnose.logs.cases.ops.skipped_source import tell_skipped
from whystuck.diagnose.logs.cases.ops.told_counters import judge_counters, list_counted_ops
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_entries import list_entry_groups, list_sites
from whystuck.diagnose.logs.told_ops import (
    ToldGroup,
    ToldOp,
    is_one_call,
    list_told_groups,
    make_told_table,
)
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.model import Topology
from whystuck.evidence.ranks import name_ranks

_CODES = {
    DivergenceKind.OP: codes.OP_MISMATCH,
    DivergenceKind.SHAPE: codes.SHAPE_MISMATCH,
    DivergenceKind.DTYPE: codes.DTYPE_MISMATCH,
    DivergenceKind.EXTRA: codes.EXTRA_COLLECTIVE,
    DivergenceKind.SKIPPED: codes.SKIPPED_COLLECTIVE,
}
_DIFFERENT = {
    codes.OP_MISMATCH: "another op",
    codes.SHAPE_MISMATCH: "tensors of another size",
    codes.DTYPE_MISMATCH: "tensors of another type",
}
_BATCHED = re.compile(r"\b(isend|irecv)\((?:src=)?(\d{1,7}) ?-> ?(?:dst=)?(\d{1,7})\)")
_P2P_OP = re.compile(
    r"P2POp\((isend|irecv) pg=[^,]{1,80}, group_src=(\d{1,7}), group_dst=(\d{1,7})"
)
# The name that torch gives to the group of all ranks.
_WORLD = "0"
_PAIR = 2
_MAX_LINES = 6


def make_parted(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that wait in different ops of one group, or did not come to one."""
    groups = (*list_entry_groups(view), *list_told_groups(view))
    # What ranks say of an op that they gave up goes before their counters.
    for group in sorted(groups, key=lambda one: not one.ops):
        found = _judge_ops(view, group) if group.ops else _judge_counted(view, group, groups)
        if found is not None:
            yield _as_members(found, group) if group.is_of_members else found
            return
    yield from _tell_named(view)


def _judge_ops(view: LogView, group: ToldGroup) -> Case | None:
    ops = sorted(group.ops.values(), key=lambda op: op.rank)
    found = (
        _judge_batches(view, ops)
        or _judge_idle(group, ops)
        or tell_skipped(view, ops, compare_ops(view, group, ops))
        or _compare_numbers(view, group, ops)
    )
    return found or _judge_all(view, group, ops)


def _judge_counted(view: LogView, group: ToldGroup, groups: Sequence[ToldGroup]) -> Case | None:
    """Compare the counters of ranks; who is ahead may be the root of an op that others are in."""
    if (found := judge_counters(view, group, groups)) is not None:
        return found
    found = _compare_numbers(view, group, list_counted_ops(group))
    return found and replace(found, ranks=(), victims=(), confidence=Confidence.POSSIBLE)


def _as_members(case: Case, group: ToldGroup) -> Case:
    """Tell the same of members of a group, as nothing tells which ranks of the job they are."""
    text = re.sub(r"\brank(s?)\b", r"member\1", case.summary)
    where = f" of group {group.name}" if group.name not in text else ""
    return replace(
        case,
        summary=f"{text}{where}; which ranks of the job these are is not told",
        ranks=(),
        victims=(),
        details={**case.details, "members": sorted(group.ops)},
    )


def _judge_all(view: LogView, group: ToldGroup, ops: Sequence[ToldOp]) -> Case | None:
    """Find that all ranks of the job wait in one op: nobody is missing, it does not get on."""
    first = ops[0]
    is_same = len({(op.op, op.seq, op.sizes) for op in ops}) == 1
    # What is guessed from the ranks that speak would always be all of them.
    size = max((file.world_size for file in view.files), default=0)
    is_all = size >= _PAIR and set(group.ops) == set(range(size))
    is_ahead = not size and group.name == _WORLD and _are_all_ahead(view, ops)
    is_one_way = {op.op for op in ops} <= {"send", "recv"}  # nobody is at the other end
    if group.is_of_members or is_one_way or not (is_same and (is_all or is_ahead)):
        return None
    who = f"all {len(ops)} ranks" if is_all else f"all {len(ops)} ranks that are told of"
    return Case(
        code=codes.TRANSFER_STALLED,
        summary=f"{who} waited in {_show(first)} until its time limit: nobody is missing, and its "
        "data did not get across",
        tier=PARTED + 1,
        victims=tuple(sorted(group.ops)),
        lines=_cite([op.event for op in ops])[:_MAX_LINES],
        time=find_time([op.event for op in ops]),
        confidence=Confidence.LIKELY if is_all else Confidence.POSSIBLE,
        details={"group": group.name, "sequence": first.seq, "op": first.op},
    )


def _are_all_ahead(view: LogView, ops: Sequence[ToldOp]) -> bool:
    """Tell whether all ranks that any line names went on to issue ops behind the one they wait in.

    How many there are is not told; so many that are numbered from 0 on are hardly a part.
    """
    ranks = {op.rank for op in ops}
    is_whole = len(ranks) > _PAIR and ranks == set(view.ranks) == set(range(len(ranks)))
    return is_whole and all(op.completed < op.seq < op.enqueued for op in ops)


def _tell_named(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that others name, as they did not come to a barrier."""
    kinds = ("c10d.monitored_barrier", "c10d.desync", "c10d.desync_behind", "hccl.timeout")
    events = list(view.list_signatures(*kinds))
    waiting = {event.rank for event in events} - {-1}
    named = sorted(set(view.votes) - waiting - {op.rank for op in _list_all_ops(view)})
    is_neighbour = any(event.signature == "hccl.timeout" for event in events)
    if not named:
        return
    is_sure = not is_neighbour or min(view.votes[rank] for rank in named) > 1
    who = name_ranks(named)
    yield Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f"{who} did not come to the op that the others wait in: they name {_it(named)}",
        tier=PARTED,
        ranks=tuple(named),
        victims=tuple(sorted(waiting)),
        lines=tuple(events[:6]),
        time=find_time(events),
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        details={"state": "unknown"},
    )


def _list_all_ops(view: LogView) -> Iterator[ToldOp]:
    for group in (*list_entry_groups(view), *list_told_groups(view)):
        yield from group.ops.values()


def _it(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"


def _judge_idle(group: ToldGroup, ops: Sequence[ToldOp]) -> Case | None:
    """Find ranks that say that all they issued is over, while others wait in a later op."""
    first = min(ops, key=lambda op: op.seq)
    if not (group.is_sure or group.name):
        return None
    idle = [
        status
        for rank, status in group.statuses.items()
        if rank not in group.ops and status.is_idle and status.enqueued < first.seq
    ]
    if not idle:
        return None
    ranks = sorted(status.rank for status in idle)
    busy = {status.rank for status in group.statuses.values() if not status.is_idle} | {*group.ops}
    if len(ranks) > len(busy):
        return _tell_extra(group, ops, ranks)
    last = max(status.enqueued for status in idle)
    waiting = name_ranks([op.rank for op in ops])
    return Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f"{name_ranks(ranks)} did not come to {first.op} {first.seq}, in which {waiting} "
        f"waited: the last op issued there is {last}, and it is over",
        tier=PARTED,
        ranks=tuple(ranks),
        victims=tuple(op.rank for op in ops),
        lines=_cite([*(status.event for status in idle), *(op.event for op in ops)]),
        time=find_time([op.event for op in ops]),
        details={"state": "unknown"},
    )


def _tell_extra(group: ToldGroup, ops: Sequence[ToldOp], idle: Sequence[int]) -> Case:
    """Tell of few ranks that wait in an op to which most others do not come: one too many."""
    ranks = tuple(op.rank for op in ops)
    events = [*(op.event for op in ops), *(group.statuses[rank].event for rank in idle)]
    return Case(
        code=codes.EXTRA_COLLECTIVE,
        summary=f"{name_ranks(ranks)} called {ops[0].op} {ops[0].seq}, to which {name_ranks(idle)} "
        "did not come: all that they issued is over",
        tier=PARTED,
        ranks=ranks,
        victims=tuple(idle),
        lines=_cite(events)[:6],
        time=find_time(events),
        details={
            "group": group.name,
            "sequence": ops[0].seq,
            "ops": {str(op.rank): op.op for op in ops},
        },
    )


def compare_ops(view: LogView, group: ToldGroup, ops: Sequence[ToldOp]) -> Case | None:
    """Compare what ranks are in at one number, as dumps are compared."""
    # A send and a receive at one number belong together.
    if len(ops) < _PAIR or len({op.seq for op in ops}) > 1 or all(op.is_transfer for op in ops):
        return None
    table = make_told_table(group)
    groups = collect_groups(table, Topology())
    parted = [find_divergence(align(table, one), {}) for one in groups]
    divergence = next((one for one in parted if one is not None), None)
    if divergence is None or divergence.way not in _CODES:
        return None
    return _tell_divergence(view, divergence, group, ops)


def is_extra_barrier(ops: Sequence[ToldOp], odd: Sequence[int]) -> bool:
    """Tell whether the first rank alone is in a barrier, where the others are in other calls.

    A barrier is no form of a call that carries data, so one side made a call more. Of the first
    rank, that is what programs do which let it alone save or print; another rank may as well have
    left out what the others are in.
    """
    own = [op for op in ops if op.rank in odd]
    rest = [op for op in ops if op.rank not in odd]
    is_first = list(odd) == [0] and len(rest) > 1
    return is_first and all(op.is_barrier for op in own) and not any(op.is_barrier for op in rest)


def _tell_divergence(
    view: LogView, divergence: Divergence, group: ToldGroup, ops: Sequence[ToldOp]
) -> Case:
    code = _CODES[divergence.way]
    values = {op.rank: _find_value(op, code) for op in ops}
    over = (op for op in group.over.values() if (op.op, op.seq) == (ops[0].op, ops[0].seq))
    past = {op.rank: _find_value(op, code) for op in over}
    blame = choose_by_past(add_alike(view, values), past)
    if code in _DIFFERENT and is_extra_barrier(ops, blame.ranks):
        code = codes.EXTRA_COLLECTIVE
    # What nothing names may be several groups, each with sizes of its own.
    is_one = group.is_sure and (code == codes.OP_MISMATCH or len(blame.ranks) == 1)
    is_sure = is_one or bool(group.name) or is_one_call(ops, blame.ranks)
    is_known = blame.is_clear and is_sure
    told = "; ".join(
        f"{name_ranks(ranks)}: {_show(next(op for op in ops if op.rank == ranks[0]))}"
        for ranks in split_by(values)
    )
    if past and is_known and not choose_odd(values).is_clear:
        told += f"; {name_ranks(sorted(past))}, for which it is over, are like the others"
    where = f" of group {group.name}" if group.name else ""
    what = "a barrier" if is_extra_barrier(ops, blame.ranks) else "another call"
    what = _DIFFERENT.get(code, what)
    head = (
        f"{name_ranks(blame.ranks)} came to number {ops[0].seq}{where} with {what} than the others"
        if is_known
        else f"ranks came to number {ops[0].seq}{where} with different ops or sizes"
    )
    odd = blame.ranks if is_known else ()
    return Case(
        code=code,
        summary=f"{head} ({told})",
        tier=PARTED,
        ranks=odd,
        victims=tuple(op.rank for op in ops if op.rank not in odd) if odd else (),
        lines=_cite([op.event for op in sorted(ops, key=lambda op: op.rank not in blame.ranks)]),
        where=tuple(
            place
            for op in ops
            if op.rank in odd
            for place in make_places(op.rank, list_sites(op.event))
        ),
        time=find_time([op.event for op in ops]),
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        details={
            "group": group.name,
            "sequence": ops[0].seq,
            "ops": {str(op.rank): op.op for op in ops},
        },
    )


def _find_value(op: ToldOp, code: str) -> object:
    """Return what ranks do not agree on."""
    if code == codes.DTYPE_MISMATCH:
        return op.dtype
    return op.op if code == codes.OP_MISMATCH else prod(op.sizes[0])


def _compare_numbers(view: LogView, group: ToldGroup, ops: Sequence[ToldOp]) -> Case | None:
    """Compare at which number ranks are: who is ahead made a call that others did not share."""
    if len({op.seq for op in ops}) < _PAIR or not (group.is_sure or group.name):
        return None
    values = {op.rank: op.seq for op in ops}
    blame = choose_odd(values)
    # Of ranks that are not shown, most may be with those that seem odd.
    is_known = blame.is_clear and 2 * (len(ops) - len(blame.ranks)) > len(view.ranks)
    common = split_by(values)[0][0]
    is_ahead = all(values[rank] > values[common] for rank in blame.ranks)
    told = "; ".join(
        f"{name_ranks(ranks)}: {_show(next(op for op in ops if op.rank == ranks[0]))}"
        for ranks in split_by(values)
    )
    where = f" of group {group.name}" if group.name else ""
    odd = blame.ranks if is_known else ()
    return Case(
        code=codes.EXTRA_COLLECTIVE if is_ahead or not is_known else codes.SKIPPED_COLLECTIVE,
        summary=f"ranks wait at different numbers{where}, so that they did not make the same calls "
        f"({told})",
        tier=PARTED,
        ranks=odd,
        victims=tuple(op.rank for op in ops if op.rank not in odd) if odd else (),
        lines=_cite([op.event for op in ops]),
        time=find_time([op.event for op in ops]),
        confidence=Confidence.LIKELY if group.name else Confidence.POSSIBLE,
        details={
            "group": group.name,
            "sequence": min(values.values()),
            "ops": {str(op.rank): op.op for op in ops},
        },
    )


def _judge_batches(view: LogView, ops: Sequence[ToldOp]) -> Case | None:
    """Compare the batches of sends and receives that ranks print before they wait in them."""
    if not all(op.is_transfer for op in ops):
        return None
    sends, receives = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    printed = dict[int, LogEvent]()
    for event in view.list_signatures("c10d.p2p_batch"):
        if event.rank < 0:
            continue
        printed[event.rank] = event
        for kind, source, target in _list_halves(event.text):
            owner = source if kind == "isend" else target
            if owner == event.rank:
                halves = sends if kind == "isend" else receives
                halves[source, target] = halves.get((source, target), 0) + 1
    lacking = {
        rank
        for pair in {*sends, *receives}
        for rank in [pair[0] if sends.get(pair, 0) < receives.get(pair, 0) else pair[1]]
        if sends.get(pair, 0) != receives.get(pair, 0)
    }
    # Of a rank that printed nothing, nobody knows what it posted.
    if not lacking or not lacking <= printed.keys():
        return None
    ranks = tuple(sorted(lacking))
    pairs = sorted(p for p in {*sends, *receives} if sends.get(p, 0) != receives.get(p, 0))
    (source, target) = pairs[0]
    half = "send" if sends.get(pairs[0], 0) < receives.get(pairs[0], 0) else "receive"
    return Case(
        code=codes.P2P_UNMATCHED,
        summary=f"{name_ranks(ranks)} did not post the {half} from rank {source} to rank {target}, "
        "whose other half its peer posted",
        tier=PARTED,
        ranks=ranks,
        victims=tuple(sorted(printed.keys() - lacking)),
        lines=_cite([*(printed[rank] for rank in sorted(printed)), *(op.event for op in ops)]),
        time=find_time([op.event for op in ops]),
        details={"ops": {str(op.rank): op.op for op in ops}},
    )


def _list_halves(text: str) -> Iterator[tuple[str, int, int]]:
    for pattern in (_BATCHED, _P2P_OP):
        for match in pattern.finditer(text):
            yield match[1], int(match[2]), int(match[3])


def _cite(events: Sequence[LogEvent]) -> tuple[LogEvent, ...]:
    return tuple({(event.artifact, event.row): event for event in events}.values())


def _show(op: ToldOp) -> str:
    sizes = f" of {prod(op.sizes[0])} elements" if op.sizes[0] else ""
    if len(op.sizes[0]) > 1 or op.dtype:
        sizes = f" of {[*op.sizes[0]]}{' ' + op.dtype if op.dtype else ''}"
    return f"{op.op} {op.seq}{sizes}"
