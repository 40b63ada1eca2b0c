"""What the dumps hold as plain tables, for programs: ops, collectives, groups, dumps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.ops.alignment import clash_at
from whystuck.diagnose.algorithms.ops.groups import GroupOps, collect_groups
from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.diagnose.summaries.grid import (
    DONE,
    NOT_KNOWN,
    NOT_THERE,
    STARTED,
    UNSEEN,
    Grid,
    make_grid,
)
from whystuck.diagnose.summaries.grid import PENDING as OPEN
from whystuck.diagnose.summaries.ops_view import END_UNKNOWN
from whystuck.diagnose.summaries.transfers import find_ends, match_transfers
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import CallSite, Collectives, OpForm
from whystuck.evidence.ranks import format_ranks

TABLES_VERSION = 1
MATCH, PENDING, MISSING = "match", "pending", "missing"


@dataclass(frozen=True)
class Coded:
    """A column of few values: ``values[codes[i]]`` is the value of row ``i``."""

    codes: NDArray[np.int64]
    values: Sequence[Any]


Column = NDArray[Any] | Coded | list[Any]


@dataclass(frozen=True)
class Table:
    """A table by columns, all of one length."""

    name: str
    columns: dict[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of rows."""
        column = next(iter(self.columns.values()), [])
        return len(column.codes) if isinstance(column, Coded) else len(column)


def make_tables(evidence: Evidence) -> tuple[Table, ...]:
    """Write all that the dumps hold as tables.

    Args:
        evidence: What was read.

    Returns:
        The tables ``ops`` (one row for each op of each rank), ``collectives`` (one for each op of
        a group), ``transfers`` (one for each transfer between two ranks), ``groups``, ``sites``
        (the call stacks) and ``dumps``.
    """
    table = evidence.collectives
    groups = collect_groups(table, evidence.topology)
    return (
        _tell_ops(table),
        _tell_collectives(table, groups),
        _tell_transfers(table),
        _tell_groups(groups),
        _tell_stacks(table),
        _tell_dumps(table),
    )


def _tell_ops(table: Collectives) -> Table:
    groups, forms, sites = table.groups, table.forms, table.sites
    state = np.where(table.done, 0, np.where(table.started, 1, 2))
    if len(table.unseen):
        state = np.where(table.unseen, 3, state)
    source, target = find_ends(table)
    columns: dict[str, Column] = {
        "rank": table.rank,
        "group": Coded(table.group, [group.name for group in groups]),
        "group_desc": Coded(table.group, [group.desc for group in groups]),
        "members": Coded(table.group, [format_ranks(group.members) for group in groups]),
        "sequence": table.seq,
        "is_p2p": table.is_p2p,
        **_tell_forms(table.form, forms),
        "source": source,
        "target": target,
        "state": Coded(state, ["done", "started", "pending", END_UNKNOWN]),
        "created_ns": table.created_ns,
        "started_ns": table.started_ns,
        "completed_ns": table.completed_ns,
        "timeout_ms": table.timeout_ms,
        **_tell_sites(table.site, sites),
        "site": table.site,
        "artifact": Coded(table.artifact, table.artifacts),
        "row": table.row,
    }
    return Table("ops", columns)


def _tell_forms(codes: NDArray[np.int64], forms: Sequence[OpForm]) -> dict[str, Column]:
    getters: dict[str, Callable[[OpForm], Any]] = {
        "op": lambda form: form.op,
        "backend": lambda form: form.backend,
        "input_sizes": lambda form: [list(size) for size in form.input_sizes],
        "output_sizes": lambda form: [list(size) for size in form.output_sizes],
        "input_dtypes": lambda form: list(form.input_dtypes),
        "output_dtypes": lambda form: list(form.output_dtypes),
    }
    return {name: Coded(codes, [get(form) for form in forms]) for name, get in getters.items()}


def _tell_sites(codes: NDArray[np.int64], sites: Sequence[CallSite]) -> dict[str, Column]:
    users = [select_user_frames(site.frames)[:1] for site in sites]
    return {
        "file": Coded(codes, [user[0].file if user else "" for user in users]),
        "line": Coded(codes, [user[0].line if user else 0 for user in users]),
        "function": Coded(codes, [user[0].function if user else "" for user in users]),
    }


def _write_stack(site: CallSite) -> list[str]:
    return [f"{frame.function} {frame.file}:{frame.line}" for frame in site.frames]


def _tell_collectives(table: Collectives, groups: Sequence[GroupOps]) -> Table:
    rows = [row for group in groups for row in _tell_lines(table, group)]
    chosen = np.array([row["_row"] for row in rows], dtype=np.int64)
    names = [name for name in rows[0] if name != "_row"] if rows else list(_EMPTY)
    columns: dict[str, Column] = {name: [row[name] for row in rows] for name in names}
    form = table.form[chosen] if len(chosen) else chosen
    site = table.site[chosen] if len(chosen) else chosen
    columns |= _tell_forms(form, table.forms)
    columns |= _tell_sites(site, table.sites)
    columns["artifact"] = Coded(table.artifact[chosen] if len(chosen) else chosen, table.artifacts)
    columns["row"] = table.row[chosen] if len(chosen) else chosen
    return Table("collectives", columns)


_RANK_SETS = ("done", "started", "pending", "missing", "unknown", "diverging")
_EMPTY = ("group", "group_desc", "members", "sequence", "status", *_RANK_SETS,
          "first_created_ns", "last_created_ns", "last_rank")  # fmt: skip


def _tell_lines(table: Collectives, group: GroupOps) -> Iterator[dict[str, Any]]:
    """Describe each op of a group; lines that look the same are described once."""
    if not group.rows_by_rank:
        return
    grid = make_grid(table, group)
    if not len(grid.seqs):
        return
    members = format_ranks(group.members)
    _, first, inverse = np.unique(grid.codes, axis=0, return_index=True, return_inverse=True)
    told = [_tell_picture(grid, int(line)) for line in first.tolist()]
    present = grid.codes >= 0
    created_ns = np.where(present, table.created_ns[grid.rows], -1)
    last = created_ns.argmax(axis=1)
    earliest_ns = np.where(present, created_ns, np.iinfo(np.int64).max).min(axis=1)
    for line, picture in enumerate(inverse.ravel().tolist()):
        yield {
            "group": group.name,
            "group_desc": group.desc,
            "members": members,
            "sequence": int(grid.seqs[line]),
            **told[picture],
            "first_created_ns": int(earliest_ns[line]),
            "last_created_ns": int(created_ns[line, last[line]]),
            "last_rank": grid.ranks[int(last[line])],
            "_row": int(grid.rows[line, int(np.argmax(present[line]))]),
        }


def _tell_picture(grid: Grid, line: int) -> dict[str, Any]:
    states = grid.states[line]
    diverging = _find_diverging(grid, line)
    missing = _name(grid, states == NOT_THERE)
    is_done = bool(np.isin(states[states >= 0], (DONE, UNSEEN)).all())
    clash = clash_at(grid.alignment, line)
    status = MATCH if is_done and not missing else MISSING if missing else PENDING
    return {
        "status": f"{clash}-mismatch" if clash else status,
        "done": _name(grid, states == DONE),
        "started": _name(grid, states == STARTED),
        "pending": _name(grid, states == OPEN),
        "missing": missing,
        "unknown": _name(grid, np.isin(states, (NOT_KNOWN, UNSEEN))),
        "diverging": diverging if clash else "",
    }


def _find_diverging(grid: Grid, line: int) -> str:
    """Name the ranks whose op differs from that of the largest set of ranks."""
    rows = grid.rows[line]
    present = grid.codes[line] >= 0
    forms = np.where(present, grid.table.form[rows], -1)
    numbers, counts = np.unique(forms[present], return_counts=True)
    if len(numbers) < 2:  # noqa: PLR2004 - one form cannot differ from itself
        return ""
    return _name(grid, present & (forms != numbers[counts.argmax()]))


def _name(grid: Grid, chosen: NDArray[np.bool_]) -> str:
    return format_ranks(grid.ranks[i] for i in np.flatnonzero(chosen).tolist())


def _tell_transfers(table: Collectives) -> Table:
    transfers = match_transfers(table)
    rows = transfers.rows
    main = rows.max(axis=1, initial=-1)
    state = (
        np.where(table.done[rows], 0, np.where(table.started[rows], 1, 2)) if len(rows) else rows
    )
    state = np.where(rows < 0, 3, state)
    names = ["done", "started", "pending", "missing"]
    columns: dict[str, Column] = {
        "group": Coded(transfers.group, [group.name for group in table.groups]),
        "group_desc": Coded(transfers.group, [group.desc for group in table.groups]),
        "source": transfers.source,
        "target": transfers.target,
        "number": transfers.number,
        "send_state": Coded(state[:, 0], names),
        "recv_state": Coded(state[:, 1], names),
        "send_ns": _pick(table.created_ns, rows[:, 0]),
        "recv_ns": _pick(table.created_ns, rows[:, 1]),
        **_tell_forms(_pick(table.form, main), table.forms),
        **_tell_sites(_pick(table.site, main), table.sites),
        "artifact": Coded(_pick(table.artifact, main), table.artifacts),
        "row": _pick(table.row, main),
    }
    return Table("transfers", columns)


def _pick(column: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Take a column at some rows; 0 where there is no row."""
    return np.where(rows < 0, 0, column[rows]) if len(column) else rows


def _tell_groups(groups: Sequence[GroupOps]) -> Table:
    columns: dict[str, Column] = {
        "group": [group.name for group in groups],
        "group_desc": [group.desc for group in groups],
        "members": [format_ranks(group.members) for group in groups],
        "size": [len(group.members) for group in groups],
    }
    return Table("groups", columns)


def _tell_stacks(table: Collectives) -> Table:
    columns: dict[str, Column] = {
        "site": list(range(len(table.sites))),
        "stack": [_write_stack(site) for site in table.sites],
    }
    return Table("sites", columns)


def _tell_dumps(table: Collectives) -> Table:
    columns: dict[str, Column] = {
        "rank": [dump.rank for dump in table.dumps],
        "artifact": [dump.artifact for dump in table.dumps],
        "version": [dump.version for dump in table.dumps],
        "first_record": [dump.first_record for dump in table.dumps],
    }
    return Table("dumps", columns)
