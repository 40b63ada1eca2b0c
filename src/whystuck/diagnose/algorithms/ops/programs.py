"""The calls of all ranks side by side, whatever their groups: where ranks of one program part.

Ranks that run one script make the same calls in the same order, each on groups of its own. That
shows who left the path where nobody has made a step yet, so that no habit tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from whystuck.diagnose.algorithms.ops.alignment import (
    ABSENT,
    Alignment,
    Clash,
    align,
    differing_lines,
)
from whystuck.diagnose.algorithms.ops.divergence import Divergence, explain_line
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.ops.progress import list_ranks, slice_rank
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import Collectives

# So many ops in which all met are gone back.
_MAX_MEETINGS = 16
_SHIFTS = frozenset({DivergenceKind.EXTRA, DivergenceKind.SKIPPED, DivergenceKind.LEFT})


def compare_programs(
    table: Collectives, groups: Sequence[GroupOps], sources: Mapping[str, str]
) -> Divergence | None:
    """Find the first call that some ranks made in place of another one.

    Args:
        table: All ops.
        groups: The groups of the table.
        sources: Text of the user's files by path.

    Returns:
        The divergence, in the group in which it shows; None where ranks run different programs,
        or the first calls are lost.
    """
    ranks = list_ranks(table)
    programs = _lay_out_from_meeting(table, groups, ranks) if len(ranks) > 1 else None
    if programs is None:
        return None
    for index in differing_lines(programs, len(programs.seqs)):
        parted = explain_line(programs, index, sources)
        if parted is not None and parted.way in _SHIFTS:
            return _find_in_group(table, groups, parted)
    # Two branches that make one op each part nobody.
    return None


def _lay_out_from_meeting(
    table: Collectives, groups: Sequence[GroupOps], ranks: Sequence[int]
) -> Alignment | None:
    """Lay out the calls from an op on in which all ranks met, some such ops before the last one.

    As far as all make the same calls there, they tell what usually follows what.
    """
    found = None
    for starts in islice(_find_meetings(table, groups, ranks), _MAX_MEETINGS):
        programs = _lay_out(table, ranks, starts)
        if found is not None:
            known = len(programs.seqs) - len(found.seqs)
            if known < 0 or differing_lines(programs, known + 1):
                break
        found = programs
    return found


def _find_meetings(
    table: Collectives, groups: Sequence[GroupOps], ranks: Sequence[int]
) -> Iterator[dict[int, int]]:
    """Yield the row of each rank in ops that all have done, the newest first; then the first rows.

    Not these where older ones are lost.
    """
    for group in groups:
        if set(group.rows_by_rank) >= set(ranks):
            alignment = align(table, group)
            for index in range(len(alignment.seqs) - 1, -1, -1):
                rows = alignment.rows_at(index)
                is_over = len(rows) == len(alignment.ranks) and all(
                    table.done[row] for row in rows.values()
                )
                if is_over and len(set(alignment.keys_at(index).values())) == 1:
                    yield {rank: rows[rank] for rank in ranks}
            break
    if not any(dump.first_record for dump in table.dumps):
        yield {rank: slice_rank(table, rank).start for rank in ranks}


def _lay_out(table: Collectives, ranks: Sequence[int], starts: Mapping[int, int]) -> Alignment:
    rows_by_rank = {
        rank: np.flatnonzero(~table.is_p2p[start : slice_rank(table, rank).stop]) + start
        for rank, start in starts.items()
    }
    longest = max(len(rows) for rows in rows_by_rank.values())
    lines = np.full((longest, len(ranks)), ABSENT, dtype=np.int64)
    for column, rank in enumerate(ranks):
        lines[: len(rows_by_rank[rank]), column] = rows_by_rank[rank]
    everybody = GroupOps("", "", frozenset(ranks), rows_by_rank)
    return Alignment(everybody, table, tuple(ranks), tuple(range(1, longest + 1)), lines)


def _find_in_group(
    table: Collectives, groups: Sequence[GroupOps], parted: Divergence
) -> Divergence | None:
    """Find the group in which ranks do not meet as they parted; None where all of them meet.

    What all members of a group call, and they alone, is no mistake.
    """
    if parted.is_tied:
        return _put_tie_in_group(table, groups, parted)
    is_extra = parted.way is DivergenceKind.EXTRA
    callers, strangers = (
        (parted.culprits, parted.others) if is_extra else (parted.others, parted.culprits)
    )
    for group in groups:
        here = [rank for rank in callers if _is_in(group, rank, parted.rows.get(rank))]
        met = _find_met(parted.alignment, group, parted.rows[here[0]]) if here else frozenset()
        missed = [rank for rank in strangers if rank in group.members - met]
        if here and missed:
            return _put_in_group(
                table, group, parted, (here, missed) if is_extra else (missed, here)
            )
    return None


def _put_tie_in_group(
    table: Collectives, groups: Sequence[GroupOps], parted: Divergence
) -> Divergence | None:
    for group in groups:
        here = [rank for rank, row in parted.rows.items() if _is_in(group, rank, row)]
        if not here:
            continue
        met = _find_met(parted.alignment, group, parted.rows[here[0]])
        both = group.members & set(parted.culprits)
        if both - met and both & met:
            seq = int(table.seq[parted.rows[here[0]]])
            rows = {rank: parted.rows[rank] for rank in both if rank in parted.rows}
            return replace(
                parted,
                alignment=align(table, group),
                culprits=tuple(sorted(both)),
                seq=seq,
                rows=rows,
                hard_seq=seq,
                hard_rows=rows,
            )
    return None


def _put_in_group(
    table: Collectives,
    group: GroupOps,
    parted: Divergence,
    sides: tuple[Sequence[int], Sequence[int]],
) -> Divergence | None:
    culprits, others = sides
    if set(culprits) != set(parted.culprits) & group.members:
        return None
    rows = {rank: row for rank, row in parted.rows.items() if _is_in(group, rank, row)}
    seq = int(table.seq[min(rows.values())])
    rows |= {rank: parted.rows[rank] for rank in culprits if rank in parted.rows}
    return replace(
        parted,
        alignment=align(table, group),
        culprits=tuple(sorted(parted.culprits)),
        others=tuple(sorted(others)),
        seq=seq,
        rows=rows,
        hard_seq=seq,
        hard_rows=rows,
        clash=Clash.OP,
        confidence=_weaken(parted),
    )


def _weaken(parted: Divergence) -> Confidence:
    """Return how sure it is: ranks need not run one program, and two halves may both be right."""
    is_shown = parted.confidence is Confidence.CERTAIN or parted.way is DivergenceKind.LEFT
    return Confidence.POSSIBLE if parted.is_even and not is_shown else Confidence.LIKELY


def _is_in(group: GroupOps, rank: int, row: int | None) -> bool:
    rows = group.rows_by_rank.get(rank)
    return row is not None and rows is not None and bool((rows == row).any())


def _find_met(programs: Alignment, group: GroupOps, row: int) -> frozenset[int]:
    """Find the members that made the call of a row, under its number in the group."""
    seq = programs.table.seq
    found = set()
    for rank, rows in group.rows_by_rank.items():
        same = rows[seq[rows] == seq[row]]
        if len(same) and programs.key_of(int(same[0])) == programs.key_of(row):
            found.add(rank)
    return frozenset(found)
