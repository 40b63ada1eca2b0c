"""H101, H105 and H106 by the calls that NCCL prints with NCCL_DEBUG_SUBSYS=COLL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.ops.parted import compare_ops
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_ops import ToldGroup, ToldOp
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.names import find_op_name
from whystuck.evidence.ranks import name_ranks

_PAIR = 2
_MAX_LINES = 6
# The calls of each rank in one communicator, by their numbers.
_Calls = Mapping[int, Mapping[int, LogEvent]]


def make_calls(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that made another call than their peers, or one call fewer."""
    for size, calls in _list_communicators(view):
        group = _find_parted(size, calls)
        found = compare_ops(view, group, list(group.ops.values())) or _find_behind(size, calls)
        if found is not None:
            yield found
            return


def _list_communicators(view: LogView) -> Iterator[tuple[int, _Calls]]:
    """Yield what ranks called in communicators of one size, where each has only one of that size.

    A communicator has another address in each process, and its id is printed far before.
    """
    found: dict[int, dict[int, dict[str, dict[int, LogEvent]]]] = {}
    for event in view.list_signatures("nccl.call"):
        if event.rank >= 0:
            size, number = int(event.groups["size"]), int(event.groups["seq"], 16)
            of_rank = found.setdefault(size, {}).setdefault(event.rank, {})
            of_rank.setdefault(event.groups["comm"], {})[number] = event
    for size, ranks in sorted(found.items(), reverse=True):
        if _PAIR <= len(ranks) <= size and all(len(comms) == 1 for comms in ranks.values()):
            yield size, {rank: next(iter(comms.values())) for rank, comms in ranks.items()}


def _find_parted(size: int, calls: _Calls) -> ToldGroup:
    """Return what ranks called at the first number at which they differ."""
    shared = sorted(set.intersection(*(set(one) for one in calls.values())))
    group = ToldGroup(f"of {size} ranks", is_sure=True)
    for number in shared:
        ops = {rank: _make_op(rank, number, one[number]) for rank, one in calls.items()}
        if len({(op.op, op.sizes) for op in ops.values()}) > 1:
            group.ops.update(ops)
            break
    return group


def _make_op(rank: int, number: int, event: LogEvent) -> ToldOp:
    count = int(event.groups["nin"])
    name = find_op_name(event.groups["op"].lower())
    return ToldOp(rank, name, number, event, ((count,), (count,)))


def _find_behind(size: int, calls: _Calls) -> Case | None:
    """Find ranks whose last call is before that of all others; they may have been cut off."""
    last = {rank: max(one) for rank, one in calls.items()}
    top = max(last.values())
    behind = tuple(sorted(rank for rank, number in last.items() if number < top))
    ahead = sorted(set(last) - set(behind))
    if not behind or len(calls) < size or len(ahead) <= max(1, len(behind)):
        return None
    lines = [calls[rank][last[rank]] for rank in (*behind, *ahead)][:_MAX_LINES]
    op = find_op_name(calls[ahead[0]][top].groups["op"].lower())
    return Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f"{name_ranks(behind)} did not make call {top} of the communicator of {size} "
        f"ranks, {op}, which all others made",
        tier=PARTED,
        ranks=behind,
        victims=tuple(ahead),
        lines=tuple(lines),
        time=find_time(lines),
        confidence=Confidence.POSSIBLE,
        details={"state": "unknown"},
        remedies=(f"py-spy dump --pid PID   # of {name_ranks(behind)}: where it is instead",),
    )
