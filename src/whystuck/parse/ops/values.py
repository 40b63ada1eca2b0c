"""The values of an op log, which its records refer to by number: groups, forms, sites, threads."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from whystuck.evidence.decoding import decode_json
from whystuck.evidence.ops.collectives import CallSite, Frame
from whystuck.evidence.ops.log import OpGroup, OpNote, OpShape, OpThread
from whystuck.evidence.ranks import MAX_RANK

_HEAD = struct.Struct("<II")
_WORD = 8
_MAX_VALUES = 100_000
# Of all groups of one log that are told as runs: 64 of 4,096 ranks.
_MAX_MEMBERS = 1 << 18
_GROUP, _FORM, _SITE, _THREAD, _NOTE = 1, 2, 3, 4, 5
_NO_GROUP = OpGroup()

# The numbers of the values that are wanted, by the name of their kind.
Used = Mapping[str, AbstractSet[int]]

_Rank = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]
_Position = Annotated[int, msgspec.Meta(ge=-1, le=MAX_RANK)]
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 61)]
_Bytes = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 61)]
_Step = Annotated[int, msgspec.Meta(ge=-MAX_RANK, le=MAX_RANK)]
_Number = Annotated[int, msgspec.Meta(gt=-(1 << 61), lt=1 << 61)]


class _GroupValue(msgspec.Struct):
    name: str = ""
    desc: str = ""
    ranks: list[_Rank] = []
    runs: list[tuple[_Rank, _Rank, _Step]] = []
    backend: str = ""
    base: _Number = -1
    generation: _Number = 0
    step: _Number = 0


class _FormValue(msgspec.Struct, rename={"inputs": "in", "outputs": "out"}):
    op: str = ""
    inputs: list[tuple[_Size, ...]] = []
    outputs: list[tuple[_Size, ...]] = []
    dtypes: list[str] = []
    in_bytes: _Bytes = 0
    out_bytes: _Bytes = 0
    device: str = ""
    root: _Position = -1
    peer: _Position = -1
    tag: _Number = 0
    in_splits: list[_Size] = []
    out_splits: list[_Size] = []


class _SiteValue(msgspec.Struct):
    frames: list[tuple[str, str, _Number]] = []


class _ThreadValue(msgspec.Struct):
    name: str = ""
    id: _Size = 0


class _NoteValue(msgspec.Struct):
    what: str = ""
    step: _Number = 0
    generation: _Number = 0
    time_ns: _Size = 0


@dataclass
class Values:
    """The values by number; 0 is the unknown one. ``lost`` could not be read."""

    groups: list[OpGroup] = field(default_factory=lambda: [OpGroup()])
    forms: list[OpShape] = field(default_factory=lambda: [OpShape()])
    sites: list[CallSite] = field(default_factory=lambda: [CallSite()])
    threads: list[OpThread] = field(default_factory=lambda: [OpThread()])
    notes: list[OpNote] = field(default_factory=list)
    lost: int = 0
    # How many members of groups were told as runs.
    expanded: int = 0
    # How many groups there were of one name and one set of members, by the hash of both.
    lives: Counter[int] = field(default_factory=Counter)

    def is_wanted(self, kind: int, used: Used) -> bool:
        """Return whether the next value of a kind is wanted."""
        if kind == _FORM:
            return len(self.forms) in used["form"]
        if kind == _SITE:
            return len(self.sites) in used["site"]
        return kind != _THREAD or len(self.threads) in used["thread"]


def read_values(region: memoryview, used: Used | None = None) -> Values:
    """Read the values of an op log.

    Args:
        region: The bytes in use.
        used: The ``group``, ``form``, ``site`` and ``thread`` numbers that are wanted, all when
            left out; the others are unknown. A job that makes groups throughout has thousands.

    Returns:
        The values. One that is damaged keeps its number, and is unknown; what comes after a damaged
        length is lost.
    """
    values = Values()
    for kind, payload in split_values(region):
        if kind is None:
            values.lost += 1
            continue
        if used is not None and not values.is_wanted(kind, used):
            _add_unknown(values, kind)
            continue
        try:
            if kind == _GROUP:
                _add_group(values, payload, used)
            else:
                _add(values, kind, payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            values.lost += 1
            _add_unknown(values, kind)
    return values


def split_values(region: memoryview) -> Iterator[tuple[int | None, memoryview]]:
    """Yield kind and payload of each value; None where it is damaged, and then no more."""
    at, count = 0, 0
    while at + _HEAD.size <= len(region):
        length, kind = _HEAD.unpack_from(region, at)
        start = at + _HEAD.size
        count += 1
        if start + length > len(region) or count > _MAX_VALUES:
            yield None, region[:0]
            return
        yield kind, region[start : start + length]
        at = start + length + -length % _WORD


def _add(values: Values, kind: int, payload: memoryview) -> None:
    if kind == _FORM:
        values.forms.append(_read_form(decode_json(payload, _FormValue)))
    elif kind == _SITE:
        site = decode_json(payload, _SiteValue)
        values.sites.append(CallSite(tuple(Frame(*frame) for frame in site.frames)))
    elif kind == _THREAD:
        thread = decode_json(payload, _ThreadValue)
        values.threads.append(OpThread(thread.name, thread.id))
    elif kind == _NOTE:
        note = decode_json(payload, _NoteValue)
        values.notes.append(OpNote(note.what, note.step, note.generation, note.time_ns))


def _add_unknown(values: Values, kind: int) -> None:
    unknown: dict[int, tuple[list[Any], Any]] = {
        _GROUP: (values.groups, OpGroup()),
        _FORM: (values.forms, OpShape()),
        _SITE: (values.sites, CallSite()),
        _THREAD: (values.threads, OpThread()),
    }
    if kind in unknown:
        known, value = unknown[kind]
        known.append(value)


def _expand(values: Values, runs: list[tuple[int, int, int]]) -> list[int]:
    """Return the members that runs of first, count and step tell.

    Raises:
        ValueError: There are too many, or one is no rank.
    """
    expanded = values.expanded + sum(count for _, count, _ in runs)
    if expanded > _MAX_MEMBERS:
        raise ValueError("too many members of groups")
    if any(not 0 <= first + (count - 1) * step <= MAX_RANK for first, count, step in runs):
        raise ValueError("a member that is no rank")
    values.expanded = expanded
    return [first + at * step for first, count, step in runs for at in range(count)]


def _add_group(values: Values, payload: memoryview, used: Used | None) -> None:
    """Add a group; one that is not wanted still counts as a life of its name."""
    value = decode_json(payload, _GroupValue)
    told = value.ranks or _expand(values, value.runs)
    # A rank that is listed twice has no position.
    ranks = tuple(told) if len(set(told)) == len(told) else ()
    key = hash((value.name, ranks))
    life = values.lives[key]
    values.lives[key] += 1
    group = _NO_GROUP
    if used is None or len(values.groups) in used["group"]:
        group = OpGroup(
            value.name, value.desc, ranks, value.backend, value.base, value.generation, value.step,
            life,
        )  # fmt: skip
    values.groups.append(group)


def _read_form(value: _FormValue) -> OpShape:
    return OpShape(
        op=value.op,
        input_sizes=tuple(value.inputs),
        output_sizes=tuple(value.outputs),
        dtypes=tuple(value.dtypes),
        input_bytes=value.in_bytes,
        output_bytes=value.out_bytes,
        device=value.device,
        root=value.root,
        peer=value.peer,
        tag=value.tag,
        input_splits=tuple(value.in_splits),
        output_splits=tuple(value.out_splits),
    )
