"""H102, H103, H106, H107 and H127 by ops that a tool prints of all ranks: where they part.

The ops are laid side by side as those of dumps are. Of a last op alone, nothing tells whether a
rank made one call too many or left one out; the ops before it do, and source beside them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.alignment import align
from whystuck.diagnose.algorithms.ops.divergence import Divergence, find_divergence
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.ops.groups import collect_groups
from whystuck.diagnose.algorithms.source.blocks import item_holds, parse_text
from whystuck.diagnose.algorithms.stacks.frames import describe_place, make_places
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_entries import list_sites
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.model import Topology
from whystuck.evidence.ops.collectives import (
    CallSite,
    Collectives,
    DumpInfo,
    Frame,
    GroupName,
    OpForm,
)
from whystuck.evidence.ops.names import find_op_name
from whystuck.evidence.ranks import name_ranks

_CODES = {
    DivergenceKind.EXTRA: codes.EXTRA_COLLECTIVE,
    DivergenceKind.SKIPPED: codes.SKIPPED_COLLECTIVE,
    DivergenceKind.LEFT: codes.LEFT_EARLY,
    DivergenceKind.SHAPE: codes.SHAPE_MISMATCH,
    DivergenceKind.DTYPE: codes.DTYPE_MISMATCH,
}
_VERBS = {
    codes.EXTRA_COLLECTIVE: "made a call more than the others",
    codes.SKIPPED_COLLECTIVE: "left out a call that the others made",
    codes.LEFT_EARLY: "left the loop that the others are still in",
    codes.SHAPE_MISMATCH: "came with a tensor of another size",
    codes.DTYPE_MISMATCH: "came with a tensor of another type",
}
_NUMBERS = re.compile(r"\d{1,18}")
_SHAPE = re.compile(r"\[([\d, ]*)\]")
_LEAST_OPS = 2
_LEAST_RANKS = 2
_MAX_LINES = 6


@dataclass(frozen=True)
class _Entry:
    """An op of a rank as it is printed; ``names`` has the functions as they are printed."""

    event: LogEvent
    seq: int
    form: OpForm
    site: CallSite
    names: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        """Whether it is completed."""
        return self.event.groups["state"] == "completed"


def make_told_history(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that made a call more or fewer than the others."""
    groups: dict[str, list[_Entry]] = {}
    for event in view.list_signatures("table.entry"):
        if event.rank >= 0:
            entry = _read_entry(event, view.evidence.sources)
            groups.setdefault(event.groups["group"], []).append(entry)
    for name, entries in groups.items():
        if not _can_compare(entries):
            continue
        table = _make_table(name, entries)
        for group in collect_groups(table, Topology()):
            divergence = find_divergence(align(table, group), view.evidence.sources)
            if divergence is not None and divergence.way in _CODES:
                yield _tell(divergence, name, entries)
                return


def _can_compare(entries: Sequence[_Entry]) -> bool:
    """Tell whether numbers mean the same on all ranks, and what is before the last ones is shown.

    Rows that are counted do where all ranks begin with the same calls.
    """
    ranks = {entry.event.rank for entry in entries}
    heads = [
        [entry.form for entry in entries if entry.event.rank == rank][:_LEAST_OPS] for rank in ranks
    ]
    is_long = all(len(head) == _LEAST_OPS for head in heads)
    is_counted = any(entry.event.groups.get("is_counted") for entry in entries)
    are_alike = all(head == heads[0] for head in heads)
    is_pending = any(not entry.is_over for entry in entries)
    is_short = is_long and (are_alike or not is_counted)
    return len(ranks) >= _LEAST_RANKS and is_pending and is_short


def _read_entry(event: LogEvent, sources: Mapping[str, str]) -> _Entry:
    sizes = tuple(
        tuple(int(number) for number in _NUMBERS.findall(shape))
        for shape in _SHAPE.findall(event.groups.get("sizes") or "")
    )
    dtype = event.groups.get("dtype") or ""
    op = find_op_name(event.groups["op"].lower())
    form = OpForm(op, sizes, sizes, (dtype,) * bool(dtype), (dtype,) * bool(dtype))
    site = list_sites(event)
    names = tuple(frame.function for frame in site)
    if len(site) == 1:
        # Of a line alone, people print what is called there, too, rather than who calls.
        function = _find_function(sources.get(site[0].file, ""), site[0].line)
        site = [Frame(function, site[0].file, site[0].line)]
    return _Entry(event, int(event.groups["seq"][:18]), form, CallSite(tuple(site)), names)


def _find_function(text: str, line: int) -> str:
    """Return the innermost function around a line, empty where the source shows none."""
    tree = parse_text(text) if text else None
    inside = [
        node
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and item_holds(node, line)
    ]
    return max(inside, key=lambda node: node.lineno).name if inside else ""


def _make_table(name: str, entries: Sequence[_Entry]) -> Collectives:
    """Lay out what is printed as dumps of flight recorders are."""
    rows = sorted(entries, key=lambda one: (one.event.rank, one.seq, one.event.row))
    forms, sites = list({one.form: None for one in rows}), list({one.site: None for one in rows})
    artifacts = sorted({one.event.artifact for one in rows})
    count = len(rows)
    zeros = np.zeros(count, np.int64)
    members = tuple(sorted({one.event.rank for one in rows}))
    return Collectives(
        rank=np.array([one.event.rank for one in rows], np.int64),
        group=zeros,
        seq=np.array([one.seq for one in rows], np.int64),
        form=np.array([forms.index(one.form) for one in rows], np.int64),
        site=np.array([sites.index(one.site) for one in rows], np.int64),
        created_ns=np.arange(count, dtype=np.int64),
        started_ns=zeros,
        completed_ns=zeros,
        timeout_ms=zeros,
        artifact=np.array([artifacts.index(one.event.artifact) for one in rows], np.int64),
        row=np.array([one.event.row for one in rows], np.int64),
        is_p2p=np.zeros(count, np.bool_),
        started=np.ones(count, np.bool_),
        done=np.array([one.is_over for one in rows], np.bool_),
        groups=(GroupName(name, members=members),),
        forms=tuple(forms),
        sites=tuple(sites),
        artifacts=tuple(artifacts),
        dumps=tuple(DumpInfo(-1, artifact) for artifact in artifacts),
    )


def _tell(divergence: Divergence, name: str, entries: Sequence[_Entry]) -> Case:
    code = _CODES[divergence.way]
    odd = () if divergence.is_tied else divergence.culprits
    at = {
        one.event.rank: one
        for one in entries
        if one.event.rank in divergence.rows and one.seq == divergence.seq
    }
    theirs = next((at[rank] for rank in divergence.others if rank in at), None)
    mine = next((at[rank] for rank in divergence.culprits if rank in at), None)
    text = f"{name_ranks(divergence.culprits)} {_VERBS[code]} at number {divergence.seq}"
    text += f": {_show(mine)}" if mine else ""
    text += f", where the others are at {_show(theirs)}" if theirs else ""
    # Of a call that was left out, the line is that of those who made it.
    shown = theirs if code == codes.SKIPPED_COLLECTIVE and theirs else mine
    lines = [at[rank].event for rank in (*divergence.culprits, *divergence.others) if rank in at]
    return Case(
        code=code,
        summary=text,
        tier=PARTED - 1,
        ranks=tuple(odd),
        victims=tuple(divergence.others) if odd else (),
        lines=tuple(lines[:_MAX_LINES]),
        where=tuple(
            place for rank in odd if shown for place in make_places(rank, _list_frames(shown))
        ),
        time=find_time(lines),
        confidence=Confidence.LIKELY if odd else Confidence.POSSIBLE,
        details={
            "group": name,
            "sequence": divergence.seq,
            "ops": {str(rank): one.form.op for rank, one in sorted(at.items())},
        },
    )


def _list_frames(entry: _Entry) -> list[Frame]:
    pairs = zip(entry.names, entry.site.frames, strict=True)
    return [Frame(name, frame.file, frame.line) for name, frame in pairs]


def _show(entry: _Entry) -> str:
    frames = _list_frames(entry)
    sizes = "".join(str([*size]) for size in entry.form.input_sizes[:2])
    where = f" in {describe_place(frames[0])}" if frames else ""
    return f"{entry.form.op}{' of ' + sizes if sizes else ''}{where}"
