"""Answers of NCCL's RAS subsystem as JSON, as NCCL 2.28.7 and later give them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from whystuck.evidence.decoding import json_decoder
from whystuck.evidence.nodes.ras import (
    RasComm,
    RasCount,
    RasError,
    RasMember,
    RasProcess,
    RasStatus,
)
from whystuck.parse.errors import ParseError
from whystuck.parse.weight import check_json

# An answer of that size, with the blanks that NCCL writes, has 300,000.
_MAX_VALUES = 1_000_000
# What `ncclResult_t` numbers, and what the text calls it. The last one is no error.
_RESULTS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}
_FINE = {0, 7}


class _RankState(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0


class _Rank(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int = -1
    status: _RankState = msgspec.field(default_factory=_RankState)
    collective_counts: dict[str, int] = {}


class _MissingState(msgspec.Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _MissingRank(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int = -1
    status: _MissingState = msgspec.field(default_factory=_MissingState)


class _Comm(msgspec.Struct):
    hash: str
    size: int = 0
    ranks: list[_Rank] = []
    missing_ranks: list[_MissingRank] = []


class _Ras(msgspec.Struct):
    timeouts_count: int = 0


class _Answer(msgspec.Struct):
    nccl_version: str
    communicators: list[_Comm]
    ras: _Ras = msgspec.field(default_factory=_Ras)


_answer_decoder = json_decoder(_Answer)


def read_ras_json(text: str) -> RasStatus:
    """Read the JSON of an answer; raises ParseError where it is none, or cut."""
    data = text.encode()
    check_json(data, _MAX_VALUES)
    try:
        answer = _answer_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParseError(f"no answer of NCCL RAS, or a cut one: {error}") from error
    comms = [_read_comm(comm) for comm in answer.communicators]
    processes = {
        RasProcess(one.pid, one.host, one.status.considered_dead)
        for comm in answer.communicators
        for one in comm.missing_ranks
        if one.status.unresponsive or one.status.considered_dead
    }
    dead = sum(one.is_dead for one in processes)
    largest = max(answer.communicators, key=lambda comm: comm.size, default=_Comm(""))
    return RasStatus(
        version=answer.nccl_version,
        comms=tuple(comm for comm in comms if _is_odd(comm)),
        comms_seen=len(comms),
        largest=largest.size,
        alike=sum(comm.size == largest.size for comm in answer.communicators),
        processes=tuple(sorted(processes, key=lambda one: (one.host, one.pid))),
        dead=dead,
        silent=len(processes) - dead,
        timeouts=answer.ras.timeouts_count,
        members=(
            *(RasMember(one.rank, one.pid, one.host) for one in largest.ranks),
            *(RasMember(one.rank, one.pid, one.host) for one in largest.missing_ranks),
        ),
    )


def _is_odd(comm: RasComm) -> bool:
    return bool(comm.counts or comm.errors or comm.missing or comm.absent)


def _read_comm(comm: _Comm) -> RasComm:
    members = [RasMember(one.rank, one.pid, one.host) for one in comm.ranks]
    missing: list[RasMember] = []
    absent: list[RasMember] = []
    for one in comm.missing_ranks:
        is_silent = one.status.unresponsive or one.status.considered_dead
        (missing if is_silent else absent).append(RasMember(one.rank, one.pid, one.host))
    return RasComm(
        hash=comm.hash[:40],
        size=comm.size,
        counts=tuple(_compare_counts(comm.ranks, members)),
        errors=tuple(_list_errors(comm.ranks, members)),
        missing=tuple(missing),
        absent=tuple(absent),
    )


def _compare_counts(ranks: list[_Rank], members: list[RasMember]) -> Iterable[RasCount]:
    """Yield the counts of each kind of which members have issued more and fewer."""
    kinds = dict.fromkeys(kind for one in ranks[:1] for kind in one.collective_counts)
    for kind in kinds:
        found: dict[int, list[RasMember]] = {}
        for one, member in zip(ranks, members, strict=True):
            found.setdefault(one.collective_counts.get(kind, 0), []).append(member)
        if len(found) > 1:
            for issued, same in sorted(found.items(), key=lambda item: (-len(item[1]), -item[0])):
                yield RasCount(kind[:40], issued, len(same), tuple(same))


def _list_errors(ranks: list[_Rank], members: list[RasMember]) -> Iterable[RasError]:
    found: dict[tuple[int, bool], list[RasMember]] = {}
    for one, member in zip(ranks, members, strict=True):
        for code, is_async in ((one.status.init_state, False), (one.status.async_error, True)):
            if code not in _FINE:
                found.setdefault((code, is_async), []).append(member)
    for (code, is_async), same in found.items():
        what = _RESULTS.get(code, "Unexpected error")
        yield RasError(what, is_async, len(same), tuple(same))
