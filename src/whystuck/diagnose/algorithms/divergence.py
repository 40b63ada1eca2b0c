"""Why ranks that share a group do not meet in one op: who left the common path, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from whystuck.diagnose.algorithms.alignment import (
    ABSENT,
    Alignment,
    Clash,
    clash_at,
    comparable_sizes,
    differing_lines,
    find_clash,
    find_successors,
    is_tie,
    matches_shifted,
    split_by,
)
from whystuck.diagnose.algorithms.frames import select_user_frames
from whystuck.diagnose.algorithms.source import Relation, relate_sites
from whystuck.evidence.collectives import Frame
from whystuck.evidence.finding import Confidence


class Way(Enum):
    """The ways to leave the common path."""

    EXTRA = "extra"
    SKIPPED = "skipped"
    LEFT = "left"
    OP = "op"
    SHAPE = "shape"
    DTYPE = "dtype"


@dataclass(frozen=True)
class Divergence:
    """The first place where some ranks of a group left the path of the others.

    ``rows`` holds, for each member that was there, the row of its op at that place;
    ``hard_rows`` the rows at the first line where forms clash or somebody is absent.
    """

    way: Way
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


@dataclass(frozen=True)
class _Fork:
    """Two classes of ranks at one line: what they did there, before and after."""

    alignment: Alignment
    index: int
    odd: tuple[int, ...]
    rest: tuple[int, ...]
    sources: Mapping[str, str]

    @property
    def odd_keys(self) -> list[int]:
        return self.alignment.keys_of(self.odd[0], self.index)

    @property
    def rest_keys(self) -> list[int]:
        return self.alignment.keys_of(self.rest[0], self.index)

    @property
    def history(self) -> list[int]:
        """Keys that the rest used before."""
        return self._read_past(self.rest[0])

    @property
    def past(self) -> set[int]:
        """Keys that any rank of the two classes used before."""
        return set(self.history) | set(self._read_past(self.odd[0]))

    def _read_past(self, rank: int) -> list[int]:
        column = self.alignment.keys[: self.index, self.alignment.ranks.index(rank)].tolist()
        return [key for key in column if key != ABSENT]

    @property
    def relation(self) -> Relation:
        rows = self.alignment.rows_at(self.index)
        return relate_sites(
            _site(self.alignment, rows[self.odd[0]]),
            _site(self.alignment, rows[self.rest[0]]),
            self.sources,
        )


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


def _make_fork(alignment: Alignment, index: int, sources: Mapping[str, str]) -> _Fork | None:
    classes = split_by(alignment.keys_at(index))
    if len(classes) < 2:  # noqa: PLR2004 - there is nobody to differ from
        return None
    odd = tuple(rank for ranks in classes[1:] for rank in ranks)
    return _Fork(alignment, index, odd, classes[0], sources)


def _explain(fork: _Fork, hard: int, clash: str) -> Divergence | None:
    """Find the way one class left the path of the other, and which class it is."""
    tied = is_tie([fork.rest, fork.odd])
    way, sure = _find_way(fork)
    if tied:
        mirror = replace(fork, odd=fork.rest, rest=fork.odd)
        other_way, other_sure = _find_way(mirror)
        if _WAY_SCORES.get(other_sure, 0) > _WAY_SCORES.get(sure, 0):
            fork, way, sure = mirror, other_way, other_sure
            tied = False
        elif _WAY_SCORES.get(other_sure, 0) < _WAY_SCORES.get(sure, 0):
            tied = False
        elif other_way is Way.EXTRA:
            # A call that nobody made before is rather one too many than one that is missed.
            fork, way, sure = mirror, other_way, other_sure
    alignment = fork.alignment
    rows = alignment.rows_at(fork.index)
    if way is Way.OP and len({alignment.form_of(row).op for row in rows.values()}) == 1:
        # Two branches that issue one op are legal; sizes or types may still differ there.
        return None
    if way is None:
        return None
    culprits, others = (fork.rest, fork.odd) if sure == _SWAPPED else (fork.odd, fork.rest)
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
        confidence=Confidence.POSSIBLE if tied else _CONFIDENCES[sure],
        is_tied=tied,
    )


# How a way was found; the weight decides between the two readings of a tie.
_BY_SHIFT_AND_HISTORY = "shift and history"
_BY_SHIFT = "shift"
_BY_SOURCE = "source"
_BY_HISTORY = "history"
_BY_ORDER = "order"
_SWAPPED = "swapped"
_WAY_SCORES = {
    _BY_SHIFT_AND_HISTORY: 5,
    _BY_SOURCE: 4,
    _SWAPPED: 4,
    _BY_HISTORY: 3,
    _BY_SHIFT: 2,
    _BY_ORDER: 1,
}
_CONFIDENCES = {
    _BY_SHIFT_AND_HISTORY: Confidence.CERTAIN,
    _BY_SOURCE: Confidence.CERTAIN,
    _SWAPPED: Confidence.LIKELY,
    _BY_HISTORY: Confidence.LIKELY,
    _BY_SHIFT: Confidence.LIKELY,
    _BY_ORDER: Confidence.POSSIBLE,
}

_Finder = Callable[[_Fork], tuple[Way | None, str]]


def _find_way(fork: _Fork) -> tuple[Way | None, str]:
    """Tell how the odd class left the path of the rest, and how that is known."""
    finders: Sequence[_Finder] = (_by_shift_history, _by_source, _by_history, _by_shift, _by_order)
    for finder in finders:
        way, sure = finder(fork)
        if way is not None:
            return way, sure
    return None, ""


def _by_source(fork: _Fork) -> tuple[Way | None, str]:
    relation = fork.relation
    odd, rest = fork.odd_keys, fork.rest_keys
    if relation is Relation.A_AFTER_LOOP:
        return Way.LEFT, _BY_SOURCE
    if relation is Relation.B_AFTER_LOOP:
        return Way.LEFT, _SWAPPED
    if relation in {Relation.EXCLUSIVE, Relation.SAME_LINE}:
        # A branch that returns early after an op of its own also looks exclusive.
        weight = _BY_SOURCE if odd[0] not in fork.past or rest[0] in fork.past else _BY_ORDER
        return Way.OP, weight
    if relation is Relation.A_EXTRA and odd[0] not in fork.past:
        return Way.EXTRA, _BY_SOURCE
    if relation is Relation.B_EXTRA and rest[0] not in fork.past:
        return Way.SKIPPED, _BY_SOURCE
    return None, ""


def _by_shift_history(fork: _Fork) -> tuple[Way | None, str]:
    odd, rest, past = fork.odd_keys, fork.rest_keys, fork.past
    is_extra = matches_shifted(odd, rest)
    is_skipped = matches_shifted(rest, odd)
    if fork.relation is Relation.EXCLUSIVE:
        return None, ""
    if is_extra and not is_skipped and odd[0] not in past:
        return Way.EXTRA, _BY_SHIFT_AND_HISTORY
    if is_skipped and not is_extra and rest[0] in past:
        return Way.SKIPPED, _BY_SHIFT_AND_HISTORY
    return None, ""


def _by_history(fork: _Fork) -> tuple[Way | None, str]:
    """Ask what normally comes here, and what normally comes after that."""
    odd, rest, past, history = fork.odd_keys[0], fork.rest_keys[0], fork.past, fork.history
    if odd not in past and rest in past:
        return Way.EXTRA, _BY_HISTORY
    normal = find_successors(history, history[-1]) if history else set()
    if rest in normal and odd in find_successors(history, rest):
        return Way.SKIPPED, _BY_HISTORY
    if rest not in past and odd in past and fork.relation is not Relation.A_FIRST:
        return Way.SKIPPED, _BY_HISTORY
    return None, ""


def _by_shift(fork: _Fork) -> tuple[Way | None, str]:
    odd, rest = fork.odd_keys, fork.rest_keys
    is_extra, is_skipped = matches_shifted(odd, rest), matches_shifted(rest, odd)
    if is_extra == is_skipped:
        return None, ""
    return (Way.EXTRA if is_extra else Way.SKIPPED), _BY_SHIFT


def _by_order(fork: _Fork) -> tuple[Way | None, str]:
    relation = fork.relation
    if relation is Relation.A_FIRST:
        return Way.EXTRA, _BY_ORDER
    if relation is Relation.B_FIRST:
        return Way.SKIPPED, _BY_ORDER
    return None, ""


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
        else:
            value = comparable_sizes(form) if clash == Clash.SIZE else form.input_dtypes
            if value:
                values[rank] = value
    classes = split_by(values)
    tied = is_tie(classes) or is_tie([classes[0], tuple(r for c in classes[1:] for r in c)])
    culprits = tuple(rank for ranks in classes[1:] for rank in ranks)
    way = {Clash.OP: Way.OP, Clash.SIZE: Way.SHAPE, Clash.DTYPE: Way.DTYPE}[clash]
    if tied:
        culprits = _break_tie(alignment, hard, classes) or culprits
        tied = len(culprits) == len(classes[0]) and _break_tie(alignment, hard, classes) is None
    everybody = tuple(sorted(values))
    return Divergence(
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
                and alignment.form_of(before) == alignment.form_of(row)
                for before in past
            )
        )
    strangers = [ranks for ranks, is_known in zip(classes, known, strict=True) if not is_known]
    if len(strangers) == len(classes) or not strangers:
        return None
    return tuple(rank for ranks in strangers for rank in ranks)


def _site(alignment: Alignment, row: int) -> tuple[Frame, ...]:
    table = alignment.table
    return select_user_frames(table.sites[int(table.site[row])].frames)
