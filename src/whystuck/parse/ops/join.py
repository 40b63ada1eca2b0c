"""Joins op logs with flight-recorder dumps: for each process group, one of the two is the source.

The two number ops in different ways, so that they are never mixed in one group. The op log of a
group on the host tells more than a recorder, which sees no sends, receives and monitored barriers
there; of a group on a device, the recorder knows when ops ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.finding import Gap
from whystuck.evidence.ops.collectives import BoolColumn, Collectives, DumpInfo, GroupName, Statuses
from whystuck.evidence.ops.log import ASYNC, P2P, UNKNOWN, Column, OpLog, Ops, OpTeam
from whystuck.parse.ops.rows import find_blocked, make_rows

HOST_BACKENDS = frozenset({"gloo", "mpi", "ucc"})
VERSION = "op log 1"


@dataclass(frozen=True)
class Joined:
    """One table of both sources, the ranks of each group by its name, and what cannot be used."""

    collectives: Collectives
    members: Mapping[str, frozenset[int]] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()


@dataclass
class _Candidate:
    """A process group that op logs tell of, and its rows by rank, oldest first."""

    team: OpTeam
    rows: dict[int, Column] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the group."""
        return self.team.name

    @property
    def members(self) -> tuple[int, ...]:
        """Its ranks, sorted."""
        return self.team.members


def join_op_logs(recorded: Collectives, ops: Ops) -> Joined:
    """Join what ranks recorded in two ways.

    Args:
        recorded: The ops of flight-recorder dumps.
        ops: The ops of op logs.

    Returns:
        One table, in which the ops of a group come from one source.
    """
    if not ops.logs:
        return Joined(recorded)
    candidates = _find_candidates(ops)
    chosen, added, dropped, gaps = [], [], [], []
    for candidate in candidates:
        use = _choose(recorded, ops, candidate)
        if use == _USE:
            chosen.append(candidate)
        elif use == _ADD:
            added.append(_keep_transfers(ops, candidate))
        elif use == _DROP:
            dropped.append(candidate)
            reason = "some ranks have an op log and others a dump only, which cannot be compared"
            gaps.append(Gap(None, f"ops of group {candidate.name}", reason))
    members: dict[str, frozenset[int]] = {}
    for candidate in candidates:
        known = members.get(candidate.name, frozenset())
        members[candidate.name] = known | frozenset(candidate.members)
    table = _replace(recorded, ops, chosen, dropped, added)
    return Joined(table, members, tuple(gaps))


def _find_candidates(ops: Ops) -> list[_Candidate]:
    """Sort the rows by group, as far as they are of the last life of it."""
    last: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
    for team in ops.teams:
        key = team.name, team.members
        last[key] = max(last.get(key, (0, 0)), (team.generation, team.life))
    rows = np.flatnonzero(ops.place != UNKNOWN)
    rows = rows[np.argsort(ops.team[rows], kind="stable")]
    bounds = np.searchsorted(ops.team[rows], np.arange(len(ops.teams) + 1)).tolist()
    found = []
    for team, (start, stop) in zip(ops.teams, pairwise(bounds), strict=True):
        mine = rows[start:stop]
        if last[team.name, team.members] == (team.generation, team.life) and len(mine):
            ranks, starts = np.unique(ops.rank[mine], return_index=True)
            parts = np.split(mine, starts[1:])
            found.append(_Candidate(team, dict(zip(ranks.tolist(), parts, strict=True))))
    return found


def _keep_transfers(ops: Ops, candidate: _Candidate) -> _Candidate:
    """Keep the sends and receives, which no recorder of the host has."""
    rows = {rank: mine[(ops.flags[mine] & P2P) > 0] for rank, mine in candidate.rows.items()}
    return _Candidate(candidate.team, rows)


_USE, _ADD, _LEAVE, _DROP = "use", "add", "leave", "drop"


def _choose(recorded: Collectives, ops: Ops, candidate: _Candidate) -> str:
    """Decide whether op logs are the source of a group, dumps are, or neither can be.

    To dumps that are the source of a group on the host, logs of some ranks add their transfers.
    """
    logs = {log.rank: log for log in ops.logs if log.rank in candidate.members}
    dumps = {dump.rank for dump in recorded.dumps} & set(candidate.members)
    here = _find_recorded(recorded, candidate)
    if not _is_on_host(ops, candidate):
        return _LEAVE if here.any() else _check(ops, candidate, logs)
    if dumps <= set(logs):
        return _check(ops, candidate, logs)
    if set(logs) <= dumps:
        return _ADD if _check(ops, candidate, logs) == _USE else _LEAVE
    alone = set(logs) - dumps
    waits = any(not ops.done_ns[rows[-1]] for rank, rows in candidate.rows.items() if rank in alone)
    return _DROP if waits else _LEAVE


def _is_on_host(ops: Ops, candidate: _Candidate) -> bool:
    if candidate.team.backend in HOST_BACKENDS:
        return True
    rows = np.concatenate(list(candidate.rows.values()))
    devices = {ops.forms[form].device for form in np.unique(ops.form[rows]).tolist()}
    return devices <= {"cpu", ""} and "cpu" in devices


def _check(ops: Ops, candidate: _Candidate, logs: Mapping[int, OpLog]) -> str:
    """Check that the numbers of all ranks can be compared."""
    generations = {log.generation for log in logs.values()}
    # A group of an older generation was not used since all were switched.
    generations |= {candidate.team.generation} - {0}
    if len(generations) > 1 or any(_is_off(log) for log in logs.values()):
        return _LEAVE
    if candidate.team.base < 0:
        number = ops.teams.index(candidate.team)
        left_out = (ops.team == number) & (ops.place == UNKNOWN)
        return _USE if ops.done_ns[left_out].all() else _LEAVE
    firsts = [int(ops.place[rows].min()) for rows in candidate.rows.values()]
    lasts = [int(ops.place[rows].max()) for rows in candidate.rows.values()]
    is_lost = any(log.dropped for log in logs.values())
    return _LEAVE if is_lost and max(firsts) > min(lasts) + 1 else _USE


def _is_off(log: OpLog) -> bool:
    switched = [note.what for note in log.notes if note.what in {"on", "off"}]
    return switched[-1:] == ["off"]


def _find_recorded(recorded: Collectives, candidate: _Candidate) -> BoolColumn:
    """Find the rows of the recorder that are of a group."""
    return _match_groups(recorded.groups, candidate, recorded.group) & np.isin(
        recorded.rank, candidate.members
    )


def _match_groups(
    groups: Sequence[GroupName], candidate: _Candidate, numbers: NDArray[np.signedinteger]
) -> BoolColumn:
    same = [
        number
        for number, group in enumerate(groups)
        if group.name == candidate.name and group.members in {(), candidate.members}
    ]
    return np.isin(numbers, same)


def _replace(
    recorded: Collectives,
    ops: Ops,
    chosen: Sequence[_Candidate],
    dropped: Sequence[_Candidate],
    added: Sequence[_Candidate],
) -> Collectives:
    """Put the rows of op logs in the place of those of the recorder."""
    keep = np.ones(len(recorded), dtype=np.bool_)
    status = recorded.statuses
    keep_status = np.ones(len(status), dtype=np.bool_)
    for candidate in (*chosen, *dropped):
        keep &= ~_find_recorded(recorded, candidate)
        here = _match_groups(recorded.groups, candidate, status.group)
        keep_status &= ~(here & np.isin(status.rank, candidate.members))
    parts = [rows for one in (*chosen, *added) for rows in one.rows.values()]
    mine = np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
    rows = make_rows(ops, mine, recorded)
    dumps, artifact_map = _list_dumps(recorded, ops, keep, [*chosen, *added])
    kept = np.flatnonzero(keep)
    old_artifact = artifact_map[0][recorded.artifact[kept]]
    columns = {
        "rank": (recorded.rank[kept], ops.rank[mine]),
        "group": (recorded.group[kept], rows.group + len(recorded.groups)),
        "seq": (recorded.seq[kept], ops.place[mine]),
        "form": (recorded.form[kept], rows.form + len(recorded.forms)),
        "site": (recorded.site[kept], rows.site),
        "created_ns": (recorded.created_ns[kept], ops.enqueued_ns[mine]),
        "started_ns": (recorded.started_ns[kept], ops.started_ns[mine]),
        "completed_ns": (recorded.completed_ns[kept], rows.ended_ns),
        "timeout_ms": (recorded.timeout_ms[kept], rows.timeout_ms),
        "artifact": (old_artifact, artifact_map[1][ops.log[mine]]),
        "row": (recorded.row[kept], ops.number[mine]),
        "is_p2p": (recorded.is_p2p[kept], rows.is_p2p),
        "started": (recorded.started[kept], ops.started_ns[mine] > 0),
        "done": (recorded.done[kept], rows.done),
        "behind": (np.zeros(len(kept), dtype=np.bool_), find_blocked(ops, rows.done, mine)),
        "unseen": (np.zeros(len(kept), dtype=np.bool_), rows.unseen),
        "is_async": (np.zeros(len(kept), dtype=np.bool_), (ops.flags[mine] & ASYNC) > 0),
        "step": (np.full(len(kept), UNKNOWN), ops.step[mine]),
    }
    return replace(
        _sort(columns),
        groups=(*recorded.groups, *rows.groups),
        forms=(*recorded.forms, *rows.forms),
        sites=rows.sites,
        artifacts=tuple(dump.artifact for dump in dumps),
        dumps=dumps,
        statuses=_take_statuses(status, keep_status),
    )


def _sort(columns: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]) -> Collectives:
    """Join rows of both sources: by rank, then by time where a rank has both."""
    joined: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items()}
    both = all(len(part) for part in columns["rank"])
    place = joined["created_ns"] if both else np.arange(len(joined["rank"]))
    order = np.lexsort((place, joined["rank"]))
    return Collectives(**{name: column[order] for name, column in joined.items()})


def _take_statuses(status: Statuses, keep: BoolColumn) -> Statuses:
    return Statuses(
        rank=status.rank[keep],
        group=status.group[keep],
        enqueued=status.enqueued[keep],
        started=status.started[keep],
        completed=status.completed[keep],
    )


def _list_dumps(
    recorded: Collectives, ops: Ops, keep: BoolColumn, used: Sequence[_Candidate]
) -> tuple[tuple[DumpInfo, ...], tuple[Column, Column]]:
    """List the files that rows come from, and tell the new numbers of both kinds."""
    logged = {log.rank for log in ops.logs}
    with_rows = set(np.unique(recorded.artifact[keep]).tolist())
    first_bases = {rank for one in used if one.team.base for rank in one.rows}
    entries = [
        (dump.rank, 1, 0, number, dump)
        for number, dump in enumerate(recorded.dumps)
        if number in with_rows or dump.rank not in logged
    ]
    for number, log in enumerate(ops.logs):
        first = log.dropped or int(log.rank in first_bases)
        info = DumpInfo(log.rank, log.artifact, VERSION, first, log.seen_ns, is_op_log=True)
        entries.append((log.rank, 0, 1, number, info))
    entries.sort(key=lambda entry: entry[:2])
    maps = np.zeros(max(1, len(recorded.dumps)), np.int64), np.zeros(len(ops.logs), np.int64)
    for place, (_, _, kind, number, _) in enumerate(entries):
        maps[kind][number] = place
    return tuple(entry[-1] for entry in entries), maps
