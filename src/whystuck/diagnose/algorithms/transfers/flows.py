"""How long like transfers take, step by step, once both ranks, or all members, have come to them.

The end of an op is known as an interval: from the last look at which it was pending to the first
one at which it was over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whystuck.diagnose.algorithms.times.op_instances import (
    Instances,
    Numbers,
    Times,
    find_meetings,
    match_instances,
)
from whystuck.diagnose.algorithms.transfers.post_times import find_peer_rank, match_transfers
from whystuck.evidence.ops.log import Ops, slice_logs

# Fewer steps than this tell nothing.
_MIN_STEPS = 10
# The op of a flow of sends and receives.
SEND = "send"


@dataclass(frozen=True)
class Flow:
    """Transfers from one rank to another one, or among the members of a group: one for each step.

    ``ranks`` are the sender and the receiver, or the members in the order of the group. ``size`` is
    what a rank gives or gets, in bytes. ``rows`` are those of the op log, ``begin_ns`` when the
    step came to them; the transfer took from ``low_ns`` to ``high_ns``. ``ends_ns`` is when each
    member was over, after the last of them had come; it has no columns for two ranks.
    """

    ranks: tuple[int, ...]
    is_pair: bool
    op: str
    group: str
    backend: str
    size: int
    rows: Numbers
    begin_ns: Times
    low_ns: Times
    high_ns: Times
    ends_ns: Times

    @property
    def middle_ns(self) -> Times:
        """The middle of what is known of each transfer."""
        return (self.low_ns + self.high_ns) / 2

    @property
    def is_among_many(self) -> bool:
        """Whether it is not known from it alone which ranks it went between."""
        return not self.is_pair and len(self.ranks) > 2  # noqa: PLR2004 - two are a pair


def measure_flows(ops: Ops) -> list[Flow]:
    """Measure the transfers of all pairs and groups.

    Args:
        ops: The op logs.

    Returns:
        A flow for each pair, or group, and op that has enough steps.
    """
    if not len(ops):
        return []
    return [*_measure_groups(ops), *_measure_pairs(ops)]


def _measure_groups(ops: Ops) -> Iterator[Flow]:
    found = match_instances(ops)
    chosen = found.is_full & (found.sizes > 1)
    first = found.rows[found.starts] if len(found.rows) else found.rows
    chosen &= find_meetings(ops)[ops.form[first]]
    names = np.array([form.op for form in ops.forms], dtype=object)[ops.form[first]]
    for team in np.unique(ops.team[first[chosen]]).tolist():
        for op in sorted(set(names[chosen & (ops.team[first] == team)])):
            here = np.flatnonzero(chosen & (ops.team[first] == team) & (names == op))
            yield from _measure_group(ops, found, here)


def _measure_group(ops: Ops, found: Instances, here: Numbers) -> Iterator[Flow]:
    team = ops.teams[int(ops.team[found.rows[found.starts[here[0]]]])]
    places = found.starts[here][:, None] + np.arange(len(team.members))
    rows = found.rows[places]
    enqueued, ended = ops.enqueued_ns[rows], ops.ended_ns[rows]
    is_over = (ended > 0).all(axis=1) & ~np.isnan(found.arrived[places]).any(axis=1)
    rows, enqueued, ended = rows[is_over], enqueued[is_over], ended[is_over]
    if not len(rows):
        return
    began = found.began[places][is_over]
    begin_ns = began.max(axis=1)
    low = np.maximum(began - begin_ns[:, None] + ops.pending_ns[rows] - enqueued, 0)
    high = np.maximum(began - begin_ns[:, None] + ended - enqueued, low)
    order = _list_members(ops, int(rows[0, 0]), team.members)
    columns = [team.members.index(rank) for rank in order]
    low, high = low[:, columns], high[:, columns]
    every = Flow(
        order,
        is_pair=False,
        op=ops.forms[int(ops.form[rows[0, 0]])].op,
        group=team.name,
        backend=team.backend,
        size=0,
        rows=rows[:, 0],
        begin_ns=begin_ns,
        low_ns=low.max(axis=1),
        high_ns=high.max(axis=1),
        ends_ns=(low + high) / 2,
    )
    if len(order) > 2:  # noqa: PLR2004 - two are a pair
        yield from _keep_longest(ops, every)
        return
    # Each of two waits for what the other one gives.
    for taker, giver in ((0, 1), (1, 0)):
        one = replace(every, ranks=(order[giver], order[taker]), is_pair=True)
        one = replace(one, low_ns=low[:, taker], high_ns=high[:, taker])
        yield from _keep_longest(ops, one)


def _list_members(ops: Ops, row: int, members: tuple[int, ...]) -> tuple[int, ...]:
    """Return the members in the order of the group, in which a ring goes."""
    order = ops.groups[int(ops.group[row])].ranks
    return tuple(order) if sorted(order) == sorted(members) else members


def _keep_longest(ops: Ops, flow: Flow) -> Iterator[Flow]:
    """Yield a flow with the longest transfer of each step alone: small ones tell nothing."""
    steps = ops.step[flow.rows]
    if len(np.unique(steps)) < _MIN_STEPS:
        # Nothing tells steps.
        steps = np.arange(len(flow.rows))
    order = np.lexsort((flow.low_ns + flow.high_ns, steps))
    is_last = np.append(np.diff(steps[order]) != 0, [True] * (len(steps) > 0))
    kept = order[is_last]
    if len(kept) < _MIN_STEPS:
        return
    sizes = np.array([max(form.input_bytes, form.output_bytes, 0) for form in ops.forms])
    columns = ("rows", "begin_ns", "low_ns", "high_ns", "ends_ns")
    chosen = {name: getattr(flow, name)[kept] for name in columns}
    size = int(np.median(sizes[ops.form[chosen["rows"]]]))
    yield replace(flow, size=size, **chosen)


def _measure_pairs(ops: Ops) -> Iterator[Flow]:
    sent_ns = match_transfers(ops).sent_ns
    rows = np.flatnonzero((sent_ns > 0) & (ops.ended_ns > 0))
    by_pair: dict[tuple[int, int, int], list[int]] = {}
    for row in rows.tolist():
        peer = find_peer_rank(ops, row)
        by_pair.setdefault((int(ops.team[row]), peer, int(ops.rank[row])), []).append(row)
    for (team, sender, receiver), listed in by_pair.items():
        mine = np.array(listed, dtype=np.int64)
        begin_ns = np.maximum(ops.enqueued_ns[mine], sent_ns[mine])
        low_ns = np.maximum(ops.pending_ns[mine] - begin_ns, 0).astype(np.float64)
        every = Flow(
            (sender, receiver),
            is_pair=True,
            op=SEND,
            group=ops.teams[team].name,
            backend=ops.teams[team].backend,
            size=0,
            rows=mine,
            begin_ns=begin_ns.astype(np.float64),
            low_ns=low_ns,
            high_ns=np.maximum(ops.ended_ns[mine] - begin_ns, low_ns),
            ends_ns=np.zeros((len(mine), 0)),
        )
        yield from _keep_longest(ops, every)


def list_hosts(ops: Ops) -> dict[int, str]:
    """Name the network stack of each rank: that of its host, or its own namespace.

    Ranks of one stack have no link between them. Of a log that does not tell the namespace, the
    stack is that of the host.
    """
    rows = slice_logs(ops)
    return {
        log.rank: f"{log.host} {log.network}".strip()
        for log, own in zip(ops.logs, rows, strict=True)
        if own.stop > own.start
    }
