"""The collectives that ranks say they wait in, as rows of the table that dumps are read into.

A watchdog names the op, its number and its sizes, and the numbers of the last ops of the rank. The
number means nothing outside its group, which newer releases of torch name in a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.collectives import (
    UNKNOWN_OP,
    CallSite,
    Collectives,
    DumpInfo,
    GroupName,
    OpForm,
)
from whystuck.evidence.ops.names import find_op_name
from whystuck.evidence.ranks import parse_ranks

_GROUP = re.compile(r"\[PG (?:ID )?(\d{1,9})(?: PG GUID ([^\s()]{1,80}))?(?: ?\(([^()]{0,80})\))?")
_LAST = re.compile(
    r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})"
)
_AT = re.compile(r"(?:at NCCL work|at work|sequence id): (\d{1,18})")
_STATUSES = ("c10d.pg_status", "c10d.dump_signal", "c10d.heartbeat", "c10d.counters")
# What torch prints where an op has no tensors of its own.
_NO_SIZE = 1 << 63
# Numbers that are so near, so far into a job, are of one group where nothing names it: two groups
# count by themselves.
_NEAR, _LATE = 16, 100
_FEW = 3
_SIZES = 2
_TRANSFERS = {"send", "recv", "recvAnySource", "coalesced"}


@dataclass(frozen=True)
class ToldOp:
    """An op that a rank waited in until its time limit, as its watchdog tells.

    ``rank`` counts inside the group where ``is_member`` is set: who of the job that is, nothing
    tells. ``group`` is empty where nothing names it; ``enqueued`` and ``completed`` are the numbers
    of the last ops of the rank in that group, -1 where they are not told.
    """

    rank: int
    op: str
    seq: int
    event: LogEvent
    sizes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    limit_ms: int = 0
    group: str = ""
    enqueued: int = -1
    completed: int = -1
    is_member: bool = False
    dtype: str = ""

    @property
    def form(self) -> OpForm:
        """What it is, with the sizes and the type of its tensors as far as they are told."""
        inputs, outputs = (self.sizes[:1], self.sizes[1:]) if self.sizes[0] else ((), ())
        types = (self.dtype,) * bool(self.dtype)
        return OpForm(self.op, inputs, outputs, types, types)

    @property
    def is_transfer(self) -> bool:
        """Whether it is a send, a receive or a batch of them."""
        return self.op in _TRANSFERS

    @property
    def is_barrier(self) -> bool:
        """Whether it is as small as what torch's barrier is made of."""
        return self.op == "barrier" or (self.op == "all_reduce" and self.sizes[0] == (1,))


@dataclass(frozen=True)
class ToldStatus:
    """How far a rank says it came in a group."""

    rank: int
    group: str
    seq: int
    enqueued: int
    completed: int
    event: LogEvent
    is_member: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether the rank has nothing to wait for: all that it issued is over."""
        return self.enqueued == self.completed >= 0


@dataclass
class ToldGroup:
    """The ops and counters of one group; ``is_sure`` tells that the numbers are surely of one.

    Those who speak are named by their numbers in it where it is ``is_of_members``. Of ranks whose
    last op is over, ``over`` has that op, where it is told.
    """

    name: str
    is_sure: bool
    is_of_members: bool = False
    ops: dict[int, ToldOp] = field(default_factory=dict)
    statuses: dict[int, ToldStatus] = field(default_factory=dict)
    over: dict[int, ToldOp] = field(default_factory=dict)


def list_told_groups(view: LogView) -> list[ToldGroup]:
    """List the groups of which ranks say where they wait, with the first op of each rank."""
    snapshot = list(_list_snapshot(view))
    statuses = [*_list_statuses(view), *(one for one in snapshot if isinstance(one, ToldStatus))]
    ops = [_place(op, statuses) for op in _list_ops(view)]
    # A report of torch names its ops as it does its statuses: by the group that reports.
    ops += [one for one in snapshot if isinstance(one, ToldOp)]
    named = sorted(({op.group for op in ops} | {one.group for one in statuses}) - {""})
    if not named:
        return [_fill("", bool(snapshot) or _is_one_group(ops), ops, statuses)]
    if len(named) == 1:
        # Ops without a name are of the group that is named, unless some must be of another: no
        # rank of one group is far ahead of another one.
        placed = [op for op in ops if op.group]
        own = placed if _are_of_two(ops) else [op for op in ops if _is_near(op, placed)]
        return [_fill(named[0], True, own, statuses)]  # noqa: FBT003
    # Ops that nothing tells the group of may be of any of them.
    return [
        _fill(
            name,
            True,  # noqa: FBT003
            [op for op in ops if op.group == name],
            [status for status in statuses if status.group == name],
        )
        for name in named
    ]


def _list_ops(view: LogView) -> Iterator[ToldOp]:
    for event in view.list_signatures("c10d.watchdog_timeout"):
        seq, op = event.groups.get("seq", ""), event.groups.get("op", "")
        rank = _find_teller(event)
        if rank < 0 or not seq.isdecimal() or not op:
            continue
        yield ToldOp(
            rank,
            find_op_name(op.lower()),
            int(seq[:18]),
            event,
            (_read_size(event, "nin"), _read_size(event, "nout")),
            int((event.groups.get("to") or "0")[:18]),
            _find_group(event.text),
            is_member=event.rank < 0,
        )


def _find_teller(event: LogEvent) -> int:
    """Return the rank that wrote a line, or its number in its group, -1 where nothing tells."""
    return event.rank if event.rank >= 0 else int(event.groups.get("member") or -1)


def _read_size(event: LogEvent, name: str) -> tuple[int, ...]:
    text = event.groups.get(name) or ""
    return (int(text[:20]),) if text.isdecimal() and int(text[:20]) < _NO_SIZE else ()


def _list_statuses(view: LogView) -> Iterator[ToldStatus]:
    for event in view.list_signatures(*_STATUSES):
        last = _LAST.search(event.text)
        rank = _find_teller(event)
        if last is not None and rank >= 0:
            at = _AT.search(event.text)
            group = _find_group(event.text)
            seq = int(at[1]) if at else -1
            yield ToldStatus(rank, group, seq, int(last[1]), int(last[2]), event, event.rank < 0)


def _list_snapshot(view: LogView) -> Iterator[ToldOp | ToldStatus]:
    """Yield what torch's report of a desync tells of each rank."""
    seqs: dict[str, int] = {}
    for event in view.list_signatures("c10d.desync_number", "c10d.desync_state"):
        if event.signature == "c10d.desync_number":
            seqs[event.artifact] = int(event.groups["seq"][:18])
            continue
        seq = seqs.get(event.artifact, -1)
        for rank in parse_ranks(event.groups["ranks"]) if seq >= 0 else ():
            if event.groups["what"] == "started":
                yield ToldOp(rank, find_op_name(event.groups["op"].lower()), seq, event)
            else:
                yield ToldStatus(rank, "", seq, seq, seq, event)


def _find_group(text: str) -> str:
    found = _GROUP.search(text)
    if found is None:
        return ""
    name, desc = found[2] or found[1], found[3] or ""
    return f"{name} ({desc})" if desc and desc != "default_pg" else name


def _place(op: ToldOp, statuses: Iterable[ToldStatus]) -> ToldOp:
    """Add what the same rank says of the group of its op."""
    for status in statuses:
        is_same = (status.rank, status.is_member) == (op.rank, op.is_member)
        if is_same and status.seq == op.seq and op.group in ("", status.group):
            return replace(
                op, group=status.group, enqueued=status.enqueued, completed=status.completed
            )
    return op


def _is_one_group(ops: Sequence[ToldOp]) -> bool:
    seqs = [op.seq for op in ops]
    if not seqs or max(seqs) - min(seqs) >= _NEAR or _are_of_two(ops):
        return False
    return min(seqs) >= _LATE or (min(seqs) >= _NEAR and _are_of_one(_list_members(ops)))


def _is_near(op: ToldOp, placed: Sequence[ToldOp]) -> bool:
    return not placed or any(abs(op.seq - one.seq) < _NEAR for one in placed)


def _list_members(ops: Iterable[ToldOp]) -> dict[int, int]:
    """Return the number that each rank gives itself in its group, -1 where it gives none."""
    return {op.rank: int(op.event.groups.get("member") or -1) for op in ops}


def _are_of_two(ops: Iterable[ToldOp]) -> bool:
    """Tell whether two ranks have the same number, which no two ranks of one group have."""
    told = [member for member in _list_members(ops).values() if member >= 0]
    return len(set(told)) < len(told)


def _are_of_one(members: Mapping[int, int]) -> bool:
    """Tell whether ranks have the numbers of one group, which those of two hardly have."""
    is_whole = set(members.values()) == set(range(len(members)))
    is_of_all = all(member == rank for rank, member in members.items())
    return len(members) >= _FEW and (is_whole or is_of_all)


def is_one_call(ops: Sequence[ToldOp], odd: Collection[int]) -> bool:
    """Tell whether ranks made one call, of which a few gave a tensor of nearly the same size.

    Early in a job, each group has an op of the same number. Those of several groups are not alike
    but for a few elements, and not all of their members have the numbers that the job gives them.
    """
    sizes = {op.sizes[0][0] for op in ops if op.sizes[0]}
    is_near = len(sizes) == _SIZES and min(sizes) > max(sizes) / 2 > 1
    are_alike = len({op.op for op in ops}) == 1 and all(op.sizes[0] for op in ops)
    is_whole = {op.rank for op in ops} == set(range(len(ops))) and len(ops) > _FEW
    members = _list_members(ops)
    return len(odd) == 1 and is_near and are_alike and is_whole and _are_of_one(members)


def _fill(
    name: str,
    is_sure: bool,  # noqa: FBT001
    ops: Iterable[ToldOp],
    statuses: Iterable[ToldStatus],
) -> ToldGroup:
    ops, statuses = tuple(ops), tuple(statuses)
    known = [op.is_member for op in ops] + [one.is_member for one in statuses]
    if len(set(known)) > 1:
        # Numbers of two kinds cannot be compared: ranks tell more.
        ops = tuple(op for op in ops if not op.is_member)
        statuses = tuple(one for one in statuses if not one.is_member)
    group = ToldGroup(name, is_sure, all(known) and bool(known))
    for op in ops:
        first = group.ops.get(op.rank)
        if first is None or op.seq < first.seq:
            group.ops[op.rank] = op
    for status in statuses:
        group.statuses.setdefault(status.rank, status)
    return group


def make_told_table(group: ToldGroup) -> Collectives:
    """Lay out the ops of a group as recorders do: what each rank waits in, and what is before it.

    What a rank issued before and behind its op is not named; its number is known.
    """
    first = min((op.seq for op in group.ops.values()), default=0)
    rows: list[tuple[ToldOp, int, bool, bool]] = []
    for op in sorted(group.ops.values(), key=lambda one: one.rank):
        start = max(0, first - 1, op.seq - _NEAR)
        rows += [(op, seq, True, False) for seq in range(start, op.seq)]
        rows.append((op, op.seq, False, True))
        rows += [(op, seq, False, False) for seq in range(op.seq + 1, op.enqueued + 1)[:_NEAR]]
    forms: dict[OpForm, int] = {OpForm(UNKNOWN_OP): 0}
    numbers = {op.rank: forms.setdefault(op.form, len(forms)) for op in group.ops.values()}
    artifacts = sorted({op.event.artifact for op in group.ops.values()})
    places = [artifacts.index(op.event.artifact) for op, *_ in rows]
    count = len(rows)
    zeros = np.zeros(count, np.int64)
    return Collectives(
        rank=np.array([op.rank for op, *_ in rows], np.int64),
        group=zeros,
        seq=np.array([seq for _, seq, *_ in rows], np.int64),
        form=np.array([numbers[op.rank] if named else 0 for op, _, _, named in rows], np.int64),
        site=zeros,
        created_ns=np.arange(count, dtype=np.int64),
        started_ns=zeros,
        completed_ns=zeros,
        timeout_ms=np.array([op.limit_ms for op, *_ in rows], np.int64),
        artifact=np.array(places, np.int64),
        row=np.array([op.event.row for op, *_ in rows], np.int64),
        is_p2p=np.zeros(count, np.bool_),
        started=np.ones(count, np.bool_),
        done=np.array([done for _, _, done, _ in rows], np.bool_),
        groups=(GroupName(group.name, members=tuple(sorted(group.ops))),),
        forms=tuple(forms),
        sites=(CallSite(),),
        artifacts=tuple(artifacts),
        dumps=tuple(DumpInfo(-1, artifact) for artifact in artifacts),
    )
