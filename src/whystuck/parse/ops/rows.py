"""Rows of op logs in the form of the table of collectives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whystuck.evidence.ops.collectives import (
    NO_PEER,
    UNKNOWN_OP,
    BoolColumn,
    CallSite,
    Collectives,
    GroupName,
    OpForm,
)
from whystuck.evidence.ops.log import (
    ASYNC,
    FAILED,
    HOST,
    ISSUE_FAILED,
    NO_END,
    P2P,
    Column,
    OpGroup,
    Ops,
    OpShape,
    number_columns,
)
from whystuck.evidence.ops.names import find_op_name, needs_all
from whystuck.parse.ops.ends import find_next, is_synchronous
from whystuck.parse.ops.halves import find_met_halves

# Backends that tell apart the messages of one pair by their tag.
_TAGGED = frozenset({"gloo", "mpi", "ucc"})
_NO_ROW = -1


@dataclass(frozen=True)
class Rows:
    """Rows of op logs: group, form and site index the tuples of the same plural name.

    ``ended_ns`` is when the op was over at the latest, 0 while it is not. ``unseen`` ops count as
    over although nobody saw that.
    """

    group: Column
    form: Column
    site: Column
    timeout_ms: Column
    ended_ns: Column
    is_p2p: BoolColumn
    done: BoolColumn
    unseen: BoolColumn
    groups: tuple[GroupName, ...]
    forms: tuple[OpForm, ...]
    sites: tuple[CallSite, ...]


def make_rows(ops: Ops, mine: Column, recorded: Collectives) -> Rows:
    """Make rows for the table of collectives.

    Args:
        ops: The op logs.
        mine: The rows to make, in order.
        recorded: What recorders tell of the same ranks: limits, and frames that a log lacks.

    Returns:
        The rows.
    """
    is_p2p = (ops.flags[mine] & P2P) > 0
    groups, group = _name_groups(ops, mine)
    forms, form = _make_forms(ops, mine, is_p2p)
    matched = _match_recorded(ops, mine, recorded)
    sites, site = _choose_sites(ops, mine, recorded, matched)
    done = is_over(ops)[mine]
    return Rows(
        group=group,
        form=form,
        site=site,
        timeout_ms=_find_limits(ops, mine, recorded, matched),
        ended_ns=np.where(done, ops.ended_ns[mine], 0),
        is_p2p=is_p2p,
        done=done,
        unseen=done & (is_end_unseen(ops) | find_met_halves(ops))[mine],
        groups=groups,
        forms=forms,
        sites=sites,
    )


def is_over(ops: Ops) -> BoolColumn:
    """Tell which ops have come to a good end, or must have.

    An asynchronous collective of which no end can be seen counts as over when its call has come
    back: nothing shows that its rank waits there. One on a device does so in any case, as its call
    waits for nobody, unless a member has not come to it. Transfers of this kind stay open, as what
    the other rank did tells more of them; on a device, those whose other half is issued are over.
    """
    failed = (ops.flags & (ISSUE_FAILED | FAILED)) > 0
    unknown = ((ops.flags & (NO_END | ASYNC | P2P)) == NO_END | ASYNC) & (ops.returned_ns > 0)
    is_seen = (ops.ended_ns > 0) & ~failed
    over = is_seen | unknown | _is_over_for_peers(ops, is_seen)
    return np.where(is_end_unseen(ops), ~_lacks_a_member(ops), over) | find_met_halves(ops)


def is_end_unseen(ops: Ops) -> BoolColumn:
    """Tell the collectives on devices whose call has come back: their ends are not recorded."""
    kind = ops.flags & (NO_END | HOST | P2P | ISSUE_FAILED | FAILED)
    return np.asarray((kind == NO_END) & (ops.returned_ns > 0) & (ops.done_ns == 0))


def _lacks_a_member(ops: Ops) -> BoolColumn:
    """Tell the ops that cannot be over, as a member with an op log has not come to them."""
    needed = np.array([needs_all(form.op) for form in ops.forms], dtype=np.bool_)[ops.form]
    rows = np.flatnonzero((ops.place > 0) & (ops.flags & P2P == 0) & (ops.team >= 0))
    logged = {log.rank for log in ops.logs}
    reached = np.zeros(len(ops.teams) + 1, dtype=np.int64)
    if len(rows):
        first, inverse = number_columns(ops.team[rows], ops.rank[rows])
        furthest = np.zeros(len(first), dtype=np.int64)
        np.maximum.at(furthest, inverse, ops.place[rows])
        team = ops.team[rows[first]]
        here = np.bincount(team, minlength=len(reached))
        reached[team] = np.iinfo(np.int64).max
        np.minimum.at(reached, team, furthest)
        wanted = np.array([len(logged & set(one.members)) for one in ops.teams] + [0])
        reached[here < wanted] = 0
    return np.asarray(needed & (ops.place > reached[ops.team]))


def _is_over_for_peers(ops: Ops, is_seen: BoolColumn) -> BoolColumn:
    """Tell the last collective of a thread that nobody saw the end of, where peers are past it.

    No member comes out of these before all have given their part.
    """
    bare = (ops.flags & NO_END > 0) & (ops.flags & (P2P | ISSUE_FAILED | FAILED) == 0) & ~is_seen
    bare &= (ops.returned_ns > 0) & (ops.place > 0)
    is_shared = np.array([needs_all(form.op) for form in ops.forms], dtype=np.bool_)
    bare &= is_shared[ops.form]
    seen = is_seen & (ops.flags & P2P == 0) & (ops.place > 0)
    furthest = np.zeros(len(ops.teams) + 1, dtype=np.int64)
    np.maximum.at(furthest, ops.team[seen], ops.place[seen])
    return np.asarray(bare & (furthest[ops.team] >= ops.place))


def find_blocked(ops: Ops, done: BoolColumn, mine: Column) -> BoolColumn:
    """Tell the pending ops whose thread is blocked in a later op.

    Args:
        ops: The op logs.
        done: Which of the rows ``mine`` are over.
        mine: The rows to tell of.

    Returns:
        One value for each of those rows.
    """
    over = np.ones(len(ops), dtype=np.bool_)
    over[mine] = done
    following = find_next(ops)
    last = (following == _NO_ROW) & (ops.thread > 0)
    # A call that has not come back blocks its thread, whatever it was asked to do.
    blocks = last & ~over & (is_synchronous(ops) | (ops.returned_ns == 0))
    threads = np.unique(ops.thread[blocks])
    return np.asarray(np.isin(ops.thread[mine], threads) & ~done & ~blocks[mine])


def _name_groups(ops: Ops, mine: Column) -> tuple[tuple[GroupName, ...], Column]:
    numbers, inverse = np.unique(ops.group[mine], return_inverse=True)
    names: dict[GroupName, int] = {}
    told = [_name_group(ops.groups[number]) for number in numbers.tolist()]
    # Ranks learn of a group at different times; its description is that of the first.
    by_members: dict[tuple[str, tuple[int, ...]], GroupName] = {}
    told = [by_members.setdefault((name.name, name.members), name) for name in told]
    places = [names.setdefault(name, len(names)) for name in told]
    return tuple(names), np.array(places or [0], dtype=np.int64)[inverse]


def _name_group(group: OpGroup) -> GroupName:
    return GroupName(group.name, group.desc, tuple(sorted(group.ranks)))


def _make_forms(ops: Ops, mine: Column, is_p2p: BoolColumn) -> tuple[tuple[OpForm, ...], Column]:
    # The ends of a transfer depend on the rank; the form of a collective does not.
    rank = np.where(is_p2p, ops.rank[mine], -1)
    columns = ops.form[mine], ops.group[mine], rank, ops.source[mine]
    first, inverse = number_columns(*columns)
    numbers: dict[OpForm, int] = {}
    made = [
        numbers.setdefault(
            _make_form(_settle(ops.forms[form], source), ops.groups[group], owner), len(numbers)
        )
        for form, group, owner, source in zip(
            *(one[first].tolist() for one in columns), strict=True
        )
    ]
    return tuple(numbers), np.array(made or [0], dtype=np.int64)[inverse]


def _settle(shape: OpShape, source: int) -> OpShape:
    """Tell whom a receive from any rank has received from, once that is known."""
    if shape.op != "recv_any" or source < 0:
        return shape
    return replace(shape, op="recv", peer=source)


def _make_form(shape: OpShape, group: OpGroup, rank: int) -> OpForm:
    count = len(shape.input_sizes)
    dtypes = shape.dtypes
    is_one = len(dtypes) == 1
    source = target = NO_PEER
    if rank >= 0 and rank in group.ranks:
        ordered = sorted(group.ranks)
        known = 0 <= shape.peer < len(group.ranks)
        peer = ordered.index(group.ranks[shape.peer]) if known else NO_PEER
        own = ordered.index(rank)
        source, target = (own, peer) if shape.op == "send" else (peer, own)
    backend = _name_backend(group.backend, shape.device)
    return OpForm(
        op=find_op_name(shape.op) or UNKNOWN_OP,
        input_sizes=shape.input_sizes,
        output_sizes=shape.output_sizes,
        input_dtypes=dtypes * count if is_one else dtypes[:count],
        output_dtypes=dtypes * len(shape.output_sizes) if is_one else dtypes[count:],
        source=source,
        target=target,
        backend=backend,
        tag=shape.tag if backend in _TAGGED else 0,
        root=group.ranks[shape.root] if 0 <= shape.root < len(group.ranks) else NO_PEER,
    )


def _name_backend(backend: str, device: str) -> str:
    """Choose the backend of a device where a group has several: ``cpu:gloo,cuda:nccl``."""
    pairs = dict(part.split(":", 1) for part in backend.split(",") if ":" in part)
    return pairs.get(device or "cpu", backend if not pairs else next(iter(pairs.values())))


def _match_recorded(ops: Ops, mine: Column, recorded: Collectives) -> Column:
    """Find the row of the recorder that is made within the call of each op, -1 when none is.

    Several rows may be: the first is taken. Sends and receives are no rows of this recorder.
    """
    matched = np.full(len(mine), _NO_ROW, dtype=np.int64)
    numbers: dict[str, list[int]] = {}
    for place, group in enumerate(recorded.groups):
        numbers.setdefault(group.name, []).append(place)
    for own, theirs in _pair_ranks(ops, mine, recorded):
        groups = ops.group[mine[own]]
        for number in np.unique(groups).tolist():
            same = numbers.get(ops.groups[number].name, [])
            here = theirs[np.isin(recorded.group[theirs], same)]
            if not len(here):
                continue
            here = here[np.argsort(recorded.created_ns[here], kind="stable")]
            places = own[groups == number]
            back_ns = ops.returned_ns[mine[places]]
            until_ns = np.where(back_ns > 0, back_ns, np.iinfo(np.int64).max)
            first = np.searchsorted(recorded.created_ns[here], ops.enqueued_ns[mine[places]])
            found = here[np.minimum(first, len(here) - 1)]
            is_in = (first < len(here)) & (recorded.created_ns[found] <= until_ns)
            matched[places[is_in]] = found[is_in]
    matched[(ops.flags[mine] & P2P) > 0] = _NO_ROW
    return matched


def _pair_ranks(ops: Ops, mine: Column, recorded: Collectives) -> Iterator[tuple[Column, Column]]:
    """Yield, for each rank that both have, its places in ``mine`` and its rows of the recorder."""
    owner = ops.rank[mine]
    for rank in np.unique(owner).tolist():
        first, last = np.searchsorted(recorded.rank, [rank, rank + 1]).tolist()
        if last > first:
            start, stop = np.searchsorted(owner, [rank, rank + 1]).tolist()
            yield np.arange(start, stop), np.arange(first, last)


def _choose_sites(
    ops: Ops, mine: Column, recorded: Collectives, matched: Column
) -> tuple[tuple[CallSite, ...], Column]:
    """Take the frames of the log; those of the recorder only where all ranks can be helped so.

    Two records of one place differ in their frames: within a group they are not mixed.
    """
    sites = (*recorded.sites, *ops.sites)
    site = ops.site[mine] + len(recorded.sites)
    has_frames = np.array([bool(known.frames) for known in ops.sites], dtype=np.bool_)
    is_bare = ~has_frames[ops.site[mine]] & ((ops.flags[mine] & P2P) == 0)
    for group in np.unique(ops.group[mine[is_bare]]).tolist():
        here = is_bare & (ops.group[mine] == group)
        if (matched[here] >= 0).all():
            site[here] = recorded.site[matched[here]]
    return sites, site


def _find_limits(ops: Ops, mine: Column, recorded: Collectives, matched: Column) -> Column:
    """Take the time limits from the recorder: of the op, else the one that all of its rank have."""
    if not len(recorded):
        return np.zeros(len(mine), dtype=np.int64)
    limits = np.where(matched >= 0, recorded.timeout_ms[matched], 0).astype(np.int64)
    for own, theirs in _pair_ranks(ops, mine, recorded):
        known = np.unique(recorded.timeout_ms[theirs])
        if len(known) == 1:
            limits[own[matched[own] < 0]] = int(known[0])
    return limits
