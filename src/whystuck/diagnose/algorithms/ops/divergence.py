"""Why ranks that share a group do not meet in one op: who left the common path, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from whystuck.diagnose.algorithms.ops.alignment import (
    Alignment,
    Clash,
    clash_at,
    comparable_sizes,
    differing_lines,
    find_clash,
    is_tie,
    matches_shifted,
    split_by,
)
from whystuck.diagnose.algorithms.ops.branch_points import BranchPoint, find_way, is_by_rank
from whystuck.diagnose.algorithms.ops.divergence_kinds import (
    AHEAD,
    BY_PAST,
    CONFIDENCES,
    SWAPPED,
    WAY_SCORES,
    DivergenceKind,
)
from whystuck.diagnose.algorithms.source.reach import is_avoidable
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import NO_PEER, UNKNOWN_OP


@dataclass(frozen=True)
class Divergence:
    """The first place where some ranks of a group left the path of the others.

    ``rows`` holds, for each member that was there, the row of its op at that place;
    ``hard_rows`` the rows at the first line where forms clash or somebody is absent. ``is_even``
    says that no side is larger, ``is_tied`` that nothing else decides either, and ``is_ahead``
    that the culprits are at a call to which all ranks come, without others before it. With
    ``by_form``, only the ops themselves tell: neither source nor history shows how ranks parted.
    """

    way: DivergenceKind
    alignment: Alignment
    culprits: tuple[int, ...]
    others: tuple[int, ...]
    seq: int
    rows: Mapping[int, int]
    hard_seq: int
    hard_rows: Mapping[int, int]
    clash: str
    confidence: Confidence
    is_tied: bool = False
    is_even: bool = False
    is_ahead: bool = False
    by_form: bool = False


def find_divergence(alignment: Alignment, sources: Mapping[str, str]) -> Divergence | None:
    """Find the first divergence behind the first clash of a group.

    Args:
        alignment: The ops of the group, side by side.
        sources: Text of the user's files by path, to tell a branch from a loop.

    Returns:
        The divergence, or None when call sites agree and somebody just has not come.
    """
    found = find_clash(alignment)
    if found is None:
        return None
    hard, clash = found
    stop = hard if clash == Clash.ABSENT else hard + 1
    asked = _find_by_rank(alignment, stop, sources)
    if asked is not None:
        return _explain(asked, hard, clash)
    for index in _find_starts(alignment, stop):
        fork = _make_fork(alignment, index, sources)
        if fork is not None:
            explained = _explain(fork, hard, clash)
            if explained is not None:
                return explained
    return _compare_forms(alignment, hard, clash)


def _find_starts(alignment: Alignment, stop: int) -> Iterator[int]:
    """Yield lines where the divergence may have begun, the best candidate first.

    A run of differing call sites that ends in agreement is legal, unless all that follows it is
    the same sequence, shifted: a loop over one call site agrees with itself when shifted.
    """
    differing = differing_lines(alignment, stop)
    known = set(differing)
    starts = [index for index in differing if index - 1 not in known]
    for index in starts:
        if _is_shifted_to_end(alignment, index, stop):
            yield index
    if not differing or differing[-1] != stop - 1:
        return
    tail = starts[-1]
    legal = {_sign(alignment, index) for index in differing if index < tail}
    yield from (index for index in range(tail, stop) if _sign(alignment, index) not in legal)


def _find_by_rank(
    alignment: Alignment, stop: int, sources: Mapping[str, str]
) -> BranchPoint | None:
    """Find the first line at which one class makes a call that asks for the rank, alone."""
    for index in differing_lines(alignment, stop):
        fork = _make_fork(alignment, index, sources)
        if fork is not None and is_by_rank(fork):
            return fork
    return None


def _sign(alignment: Alignment, index: int) -> frozenset[int]:
    return frozenset(alignment.keys_at(index).values())


def _is_shifted_to_end(alignment: Alignment, index: int, stop: int) -> bool:
    """Tell whether one class of ranks runs one op ahead or behind from a line to the end."""
    classes = split_by(alignment.keys_at(index))
    if len(classes) < 2 or stop - index < 2:  # noqa: PLR2004 - a shift needs two of each
        return False
    rest = alignment.keys_of(classes[0][0], index)
    for odd_class in classes[1:]:
        odd = alignment.keys_of(odd_class[0], index)
        if not (matches_shifted(odd, rest) or matches_shifted(rest, odd)):
            return False
    return True


def _make_fork(alignment: Alignment, index: int, sources: Mapping[str, str]) -> BranchPoint | None:
    classes = split_by(alignment.keys_at(index))
    if len(classes) < 2:  # noqa: PLR2004 - there is nobody to differ from
        return None
    odd = tuple(rank for ranks in classes[1:] for rank in ranks)
    return BranchPoint(alignment, index, odd, classes[0], sources)


def explain_line(alignment: Alignment, index: int, sources: Mapping[str, str]) -> Divergence | None:
    """Explain one line of a table; None where all ranks are at one call, or no way is known.

    Args:
        alignment: The ops of some ranks, side by side.
        index: The line.
        sources: Text of the user's files by path.
    """
    fork = _make_fork(alignment, index, sources)
    return _explain(fork, index, Clash.OP) if fork is not None else None


def _explain(fork: BranchPoint, hard: int, clash: str) -> Divergence | None:
    """Find the way one class left the path of the other, and which class it is."""
    tied = is_even = is_tie([fork.rest, fork.odd])
    way, sure = find_way(fork)
    if tied:
        mirror = replace(fork, odd=fork.rest, rest=fork.odd)
        other_way, other_sure = find_way(mirror)
        if WAY_SCORES.get(other_sure, 0) > WAY_SCORES.get(sure, 0):
            fork, way, sure = mirror, other_way, other_sure
            tied = False
        elif WAY_SCORES.get(other_sure, 0) < WAY_SCORES.get(sure, 0):
            tied = False
        elif other_way is way and (sure == SWAPPED) != (other_sure == SWAPPED):
            tied = False  # seen from either side, the same side is at fault
        elif other_way is DivergenceKind.EXTRA:
            # A call that nobody made before is rather one too many than one that is missed.
            fork, way, sure = mirror, other_way, other_sure
        tied = tied or (sure in BY_PAST and not fork.has_past(way))
        # Who is not ahead may as well have made a call too many.
        is_open = sure == AHEAD and way is DivergenceKind.SKIPPED
        tied = tied or (is_open and not is_avoidable(*fork.sites[::-1], fork.sources))
    alignment = fork.alignment
    rows = alignment.rows_at(fork.index)
    ops = {alignment.form_of(row).op for row in rows.values()} - {UNKNOWN_OP}
    if way is DivergenceKind.OP and len(ops) < 2:  # noqa: PLR2004 - one op cannot disagree with itself
        # Two branches that issue one op are legal; sizes or types may still differ there.
        return None
    if way is None:
        return None
    culprits, others = (fork.rest, fork.odd) if sure == SWAPPED else (fork.odd, fork.rest)
    return Divergence(
        way=way,
        alignment=alignment,
        culprits=culprits + others if tied else culprits,
        others=() if tied else others,
        seq=alignment.seqs[fork.index],
        rows=rows,
        hard_seq=alignment.seqs[hard],
        hard_rows=alignment.rows_at(hard),
        clash=clash,
        confidence=Confidence.POSSIBLE if tied else CONFIDENCES[sure],
        is_tied=tied,
        is_even=is_even,
        is_ahead=sure == AHEAD,
    )


def _compare_forms(alignment: Alignment, hard: int, clash: str) -> Divergence | None:
    """Explain a clash of forms at one call site."""
    if clash == Clash.ABSENT or clash_at(alignment, hard) is None:
        return None
    rows = alignment.rows_at(hard)
    values: dict[int, object] = {}
    for rank, row in rows.items():
        form = alignment.form_of(row)
        if clash == Clash.OP:
            values[rank] = form.op
        elif clash == Clash.ROOT:
            if form.root != NO_PEER:
                values[rank] = form.root
        else:
            value = comparable_sizes(form) if clash == Clash.SIZE else form.input_dtypes
            if value:
                values[rank] = value
    classes = split_by(values)
    tied = is_tie(classes) or is_tie([classes[0], tuple(r for c in classes[1:] for r in c)])
    culprits = tuple(rank for ranks in classes[1:] for rank in ranks)
    way = {
        Clash.OP: DivergenceKind.OP,
        Clash.ROOT: DivergenceKind.OP,
        Clash.SIZE: DivergenceKind.SHAPE,
        Clash.DTYPE: DivergenceKind.DTYPE,
    }[clash]
    if tied:
        culprits = _break_tie(alignment, hard, classes) or culprits
        tied = len(culprits) == len(classes[0]) and _break_tie(alignment, hard, classes) is None
    everybody = tuple(sorted(values))
    return Divergence(
        by_form=True,
        way=way,
        alignment=alignment,
        culprits=everybody if tied else culprits,
        others=() if tied else tuple(rank for rank in everybody if rank not in culprits),
        seq=alignment.seqs[hard],
        rows=rows,
        hard_seq=alignment.seqs[hard],
        hard_rows=rows,
        clash=clash,
        confidence=Confidence.POSSIBLE if tied else Confidence.CERTAIN,
        is_tied=tied,
    )


def _break_tie(
    alignment: Alignment, hard: int, classes: Sequence[tuple[int, ...]]
) -> tuple[int, ...] | None:
    """Let history decide: a form that this call site had before is the normal one."""
    rows = alignment.rows_at(hard)
    known = []
    for ranks in classes:
        row = rows[ranks[0]]
        column = alignment.ranks.index(ranks[0])
        past = [before for before in alignment.rows[:hard, column].tolist() if before >= 0]
        known.append(
            any(
                alignment.key_of(before) == alignment.key_of(row)
                and _is_one_form(alignment, before, row)
                for before in past
            )
        )
    strangers = [ranks for ranks, is_known in zip(classes, known, strict=True) if not is_known]
    if len(strangers) == len(classes) or not strangers:
        return None
    return tuple(rank for ranks in strangers for rank in ranks)


def _is_one_form(alignment: Alignment, one: int, two: int) -> bool:
    """Tell whether two calls have one form; roots may go around."""
    first, second = alignment.form_of(one), alignment.form_of(two)
    return replace(first, root=NO_PEER) == replace(second, root=NO_PEER)
