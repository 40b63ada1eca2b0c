"""Flight-recorder dumps of torch, pickle or JSON, schema 2.2 to 2.10, to columns of one rank.

gloo specifics: ``state`` is always "scheduled", so that ``retired`` is the truth about
completion, and ``pg_config`` is empty, so that members come from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from whystuck.evidence.collectives import (
    NO_PEER,
    BoolColumn,
    CallSite,
    Frame,
    GroupName,
    IntColumn,
    OpForm,
    Statuses,
)
from whystuck.parse.errors import ParseError
from whystuck.parse.safe_pickle import load_plain_pickle

T = TypeVar("T")

_BAD_CONTENT = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


@dataclass(frozen=True)
class RankDump:
    """The ops of one dump file as columns; ``group``, ``form`` and ``site`` index its tuples."""

    rank: int
    artifact: str
    group: IntColumn
    seq: IntColumn
    form: IntColumn
    site: IntColumn
    created_ns: IntColumn
    started_ns: IntColumn
    completed_ns: IntColumn
    timeout_ms: IntColumn
    is_p2p: BoolColumn
    started: BoolColumn
    done: BoolColumn
    groups: tuple[GroupName, ...] = ()
    forms: tuple[OpForm, ...] = ()
    sites: tuple[CallSite, ...] = ()
    members: Mapping[str, frozenset[int]] = field(default_factory=dict)
    version: str = ""
    first_record: int = 0
    statuses: Statuses = field(default_factory=Statuses)

    def __len__(self) -> int:
        """Return the number of ops."""
        return len(self.seq)


class _Interned(Generic[T]):
    """Gives equal keys the same small number, and keeps one value for each."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._number_by_key: dict[Hashable, int] = {}

    def find(self, key: Hashable) -> int | None:
        """Return the number of a key seen before."""
        return self._number_by_key.get(key)

    def add(self, key: Hashable, value: T) -> int:
        """Keep a value under a new key and return its number."""
        number = self._number_by_key[key] = len(self.values)
        self.values.append(value)
        return number


def is_flight_recorder(content: object) -> bool:
    """Tell whether a decoded pickle or JSON value is a flight-recorder dump."""
    return (
        isinstance(content, dict)
        and "version" in content
        and any(key in content for key in ("entries", "pg_status", "pg_config"))
    )


def parse_flight_recorder(
    data: bytes,
    *,
    rank: int,
    artifact: str,
    members: Mapping[str, Sequence[int]] | None = None,
) -> RankDump:
    """Read one dump.

    Args:
        data: The file, pickle or JSON.
        rank: The rank that wrote it; a dump does not say.
        artifact: The path to cite.
        members: Ranks of each group by name, where known from elsewhere; the dumps of gloo
            do not say.

    Returns:
        The ops of that rank, oldest first.

    Raises:
        ParseError: It is no flight-recorder dump, or a damaged one.
    """
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            content: object = msgspec.json.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ParseError(f"not readable as JSON ({str(error)[:120]})") from error
    else:
        content = load_plain_pickle(data)
    if not isinstance(content, dict) or not is_flight_recorder(content):
        raise ParseError("not a flight-recorder dump")
    try:
        return _read_dump(content, rank, artifact, members or {})
    except _BAD_CONTENT as error:
        raise ParseError(f"damaged flight-recorder dump ({error!r:.120})") from error


def _read_dump(
    content: Mapping[str, Any], rank: int, artifact: str, known: Mapping[str, Sequence[int]]
) -> RankDump:
    entries = content.get("entries") or []
    members = _read_members(content.get("pg_config") or {})
    members.update({name: frozenset(ranks) for name, ranks in known.items()})
    groups, group = _intern_groups(entries, members)
    groups, statuses = _read_statuses(content, rank, groups, entries)
    forms, form = _intern_forms(entries)
    sites, site = _intern_sites(entries)
    is_p2p = [bool(entry.get("is_p2p")) for entry in entries]
    seq = [
        entry.get("p2p_seq_id", 0) if p2p else entry.get("collective_seq_id", 0)
        for entry, p2p in zip(entries, is_p2p, strict=True)
    ]
    done = [bool(entry.get("retired")) or entry.get("state") == "completed" for entry in entries]
    started = [
        entry.get("state") in ("started", "completed")
        or bool(entry.get("time_discovered_started_ns"))
        for entry in entries
    ]
    return RankDump(
        rank=rank,
        artifact=artifact,
        group=_ints(group),
        seq=_ints(seq),
        form=_ints(form),
        site=_ints(site),
        created_ns=_ints([entry.get("time_created_ns") or 0 for entry in entries]),
        started_ns=_ints([entry.get("time_discovered_started_ns") or 0 for entry in entries]),
        completed_ns=_ints([entry.get("time_discovered_completed_ns") or 0 for entry in entries]),
        timeout_ms=_ints([entry.get("timeout_ms") or 0 for entry in entries]),
        is_p2p=np.array(is_p2p, dtype=np.bool_),
        started=np.array(started, dtype=np.bool_),
        done=np.array(done, dtype=np.bool_),
        groups=groups,
        forms=forms,
        sites=sites,
        members=members,
        version=str(content.get("version", "")),
        first_record=int(entries[0].get("record_id") or 0) if entries else 0,
        statuses=statuses,
    )


def _read_statuses(
    content: Mapping[str, Any],
    rank: int,
    groups: tuple[GroupName, ...],
    entries: Sequence[Mapping[str, Any]],
) -> tuple[tuple[GroupName, ...], Statuses]:
    """Read the counters of each group; they are keyed by a number that only entries explain."""
    known = list(groups)
    number_by_name = {(group.name, group.desc): number for number, group in enumerate(groups)}
    number_by_pg_id: dict[str, int] = {}
    for entry in entries:
        name, desc = (*(entry.get("process_group") or ("", "")), "")[:2]
        number_by_pg_id[str(entry.get("pg_id"))] = number_by_name[str(name), str(desc)]
    rows = [
        (number_by_pg_id[pg_id], status)
        for pg_id, status in (content.get("pg_status") or {}).items()
        if pg_id in number_by_pg_id
    ]
    return tuple(known), Statuses(
        rank=_ints([rank] * len(rows)),
        group=_ints([number for number, _ in rows]),
        enqueued=_ints([int(status.get("last_enqueued_collective", -1)) for _, status in rows]),
        started=_ints([int(status.get("last_started_collective", -1)) for _, status in rows]),
        completed=_ints([int(status.get("last_completed_collective", -1)) for _, status in rows]),
    )


def _ints(values: Sequence[int]) -> IntColumn:
    return np.array(values, dtype=np.int64)


def _intern_groups(
    entries: Sequence[Mapping[str, Any]], members: Mapping[str, frozenset[int]]
) -> tuple[tuple[GroupName, ...], list[int]]:
    interned: _Interned[GroupName] = _Interned()
    numbers = []
    for entry in entries:
        key = tuple(entry.get("process_group") or ("", ""))
        number = interned.find(key)
        if number is None:
            name, desc = str(key[0]), str(key[1]) if len(key) > 1 else ""
            ranks = tuple(sorted(members.get(name, ())))
            number = interned.add(key, GroupName(name, desc, ranks))
        numbers.append(number)
    return tuple(interned.values), numbers


def _intern_forms(entries: Sequence[Mapping[str, Any]]) -> tuple[tuple[OpForm, ...], list[int]]:
    interned: _Interned[OpForm] = _Interned()
    numbers = []
    for entry in entries:
        name = entry["profiling_name"]
        raw = (
            entry.get("input_sizes") or (),
            entry.get("output_sizes") or (),
            entry.get("input_dtypes") or (),
            entry.get("output_dtypes") or (),
        )
        # The text of the nested lists is a cheaper key than tuples of tuples.
        key = (name, repr(raw))
        number = interned.find(key)
        if number is None:
            number = interned.add(key, _read_form(name, raw))
        numbers.append(number)
    return tuple(interned.values), numbers


def _read_form(name: str, raw: tuple[Any, Any, Any, Any]) -> OpForm:
    input_sizes, output_sizes, input_dtypes, output_dtypes = raw
    backend, colon, op = name.partition(":")
    if not colon:
        backend, op = "", name
    op, source, target = _read_peers(op)
    return OpForm(
        op=op,
        input_sizes=_read_sizes(input_sizes),
        output_sizes=_read_sizes(output_sizes),
        input_dtypes=tuple(str(dtype) for dtype in input_dtypes),
        output_dtypes=tuple(str(dtype) for dtype in output_dtypes),
        source=source,
        target=target,
        backend=backend,
    )


_PEERS = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")


def _read_peers(op: str) -> tuple[str, int, int]:
    """Split ``send 0->3`` and ``recv 3<-0`` into the op and its two ends."""
    match = _PEERS.fullmatch(op)
    if match is None:
        return op, NO_PEER, NO_PEER
    first, second = int(match[2]), int(match[4])
    source, target = (first, second) if match[3] == "->" else (second, first)
    return match[1], source, target


def _read_sizes(sizes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(extent) for extent in size) for size in sizes)


def _intern_sites(entries: Sequence[Mapping[str, Any]]) -> tuple[tuple[CallSite, ...], list[int]]:
    interned: _Interned[CallSite] = _Interned()
    number_by_identity: dict[tuple[int, ...], int] = {}
    numbers = []
    for entry in entries:
        frames = entry.get("frames") or ()
        # Frames are shared objects inside one pickle, so that identity is the fast key.
        identity = tuple(map(id, frames))
        number = number_by_identity.get(identity)
        if number is None:
            site = CallSite(
                tuple(
                    Frame(str(frame["name"]), str(frame["filename"]), int(frame["line"]))
                    for frame in frames
                )
            )
            known = interned.find(site)
            number = interned.add(site, site) if known is None else known
            number_by_identity[identity] = number
        numbers.append(number)
    return tuple(interned.values), numbers


def _read_members(pg_config: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    members = {}
    for config in pg_config.values():
        name, ranks = config.get("name"), config.get("ranks")
        if isinstance(ranks, str):
            ranks = [int(part) for part in ranks.strip("[] ").split(",") if part.strip()]
        if name and ranks:
            members[str(name)] = frozenset(int(rank) for rank in ranks)
    return members
