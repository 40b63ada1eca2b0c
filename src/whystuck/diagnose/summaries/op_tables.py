"""What the op logs hold as plain tables, for programs: every op, and what the kinds of ops cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import asdict

from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.diagnose.summaries.recorded import Coded, Column, Table
from whystuck.evidence.ops.collectives import CallSite
from whystuck.evidence.ops.log import (
    ASYNC,
    FAILED,
    HOST,
    ISSUE_FAILED,
    NO_END,
    P2P,
    Ops,
    OpShape,
    number_columns,
)
from whystuck.evidence.sections import Communication, CommunicationRow


def make_ops_table(ops: Ops) -> Table:
    """Write the ops of all ranks as a table, one row for each op of each rank.

    Args:
        ops: The op logs.

    Returns:
        The table; `docs/guides/communication.md` describes its columns.
    """
    groups = ops.groups
    columns: dict[str, Column] = {
        "rank": ops.rank,
        "group": Coded(ops.group, [group.name for group in groups]),
        "group_desc": Coded(ops.group, [group.desc for group in groups]),
        "seq": ops.seq,
        "place": ops.place,
        **_tell_forms(ops),
        **_tell_sites(ops, ops.sites),
        "step": ops.step,
        "thread": Coded(ops.thread, [thread.name for thread in ops.threads]),
        "thread_id": Coded(ops.thread, [thread.native_id for thread in ops.threads]),
        "is_async": (ops.flags & ASYNC) > 0,
        "is_p2p": (ops.flags & P2P) > 0,
        "on_host": (ops.flags & HOST) > 0,
        "failed": (ops.flags & (FAILED | ISSUE_FAILED)) > 0,
        "end_unseen": (ops.flags & NO_END) > 0,
        "enqueued_ns": ops.enqueued_ns,
        "returned_ns": ops.returned_ns,
        "started_ns": ops.started_ns,
        "pending_ns": ops.pending_ns,
        "done_ns": ops.done_ns,
        "ended_ns": ops.ended_ns,
        "artifact": Coded(ops.log, [log.artifact for log in ops.logs] or [""]),
        "row": ops.number,
    }
    return Table("ops", columns)


def make_communication_table(communication: Communication) -> Table:
    """Write what the kinds of ops cost as a table.

    Args:
        communication: The figures of a report.

    Returns:
        The table: the fields of a row, in their order.
    """
    rows = [asdict(row) for row in communication.rows]
    names = CommunicationRow.__struct_fields__
    return Table("communication", {name: [row[name] for row in rows] for name in names})


def _tell_forms(ops: Ops) -> dict[str, Column]:
    getters: dict[str, Callable[[OpShape], Any]] = {
        "op": lambda form: form.op,
        "device": lambda form: form.device,
        "input_sizes": lambda form: [list(size) for size in form.input_sizes],
        "output_sizes": lambda form: [list(size) for size in form.output_sizes],
        "dtypes": lambda form: list(form.dtypes),
        "input_bytes": lambda form: form.input_bytes,
        "output_bytes": lambda form: form.output_bytes,
        "input_splits": lambda form: list(form.input_splits),
        "output_splits": lambda form: list(form.output_splits),
        "tag": lambda form: form.tag,
    }
    told: dict[str, Column] = {
        name: Coded(ops.form, [get(form) for form in ops.forms]) for name, get in getters.items()
    }
    return told | {"peer": _find_ranks(ops, "peer"), "root": _find_ranks(ops, "root")}


def _find_ranks(ops: Ops, name: str) -> Column:
    """Turn a position in the group into a rank, -1 where there is none."""
    first, inverse = number_columns(ops.group, ops.form)
    found = []
    for group, form in zip(ops.group[first].tolist(), ops.form[first].tolist(), strict=True):
        ranks, position = ops.groups[group].ranks, int(getattr(ops.forms[form], name))
        found.append(ranks[position] if 0 <= position < len(ranks) else -1)
    return np.array(found or [-1], dtype=np.int64)[inverse]


def _tell_sites(ops: Ops, sites: Sequence[CallSite]) -> dict[str, Column]:
    users = [select_user_frames(site.frames)[:1] for site in sites]
    return {
        "file": Coded(ops.site, [user[0].file if user else "" for user in users]),
        "line": Coded(ops.site, [user[0].line if user else 0 for user in users]),
        "function": Coded(ops.site, [user[0].function if user else "" for user in users]),
    }
