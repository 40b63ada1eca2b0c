"""Timelines as tables of words: one row an op, one column a set of ranks that did the same.

Where there are more sets than fit, each op has one row for each set instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from whystuck.evidence.ranks import parse_ranks
from whystuck.evidence.sections import RankClass, Timeline, TimelineOp
from whystuck.report.stacks import label_ranks, short_place
from whystuck.safe_text.escaping import show_line

MARKS = {"divergence": "->", "pending": ">", "mismatch": "!"}
_MEANINGS = {
    "divergence": "the ranks part here",
    "pending": "the first op that is not done",
    "mismatch": "other op, size or type",
}
# More columns than this are hard to compare, however wide the page is.
_MAX_COLUMNS = 4
_MAX_SIZES = 4
_SIZES_CHARS = 24
_RANKS_CHARS = 18
_NAMES_SHOWN = 4
# One op of a thousand ranks that all did something else must not fill the screen.
_MAX_CLASSES = 6
_STAR = "*"
_NUMBERS_SHOWN = 10


@dataclass(frozen=True)
class Row:
    """One row: its mark (``divergence``, ``pending``, ``mismatch`` or empty), its cells, stacks."""

    mark: str
    cells: tuple[str, ...]
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimelineTable:
    """One timeline in words; ``notes`` say what the table does not show, ``legend`` its marks."""

    title: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    legend: str


def lay_out_timeline(
    item: Timeline, room: int | None = None, named: frozenset[int] = frozenset()
) -> TimelineTable:
    """Put a timeline into a table.

    Args:
        item: The timeline.
        room: The columns of text there are; None where the reader's program wraps cells.
        named: The ranks that are named as the cause; sets of these get a star.

    Returns:
        The table, with a column for each set of ranks if these fit.
    """
    with_stacks = any(len(part.sites) > 1 for op in item.ops for part in op.classes)
    with_columns = 0 < len(item.columns) <= _MAX_COLUMNS and not with_stacks
    if with_columns:
        for with_function in (True, False):
            table = _with_columns(item, named, with_function=with_function)
            if room is None or _measure(table) <= room:
                return table
    return _with_rows(item, named)


def measure_columns(table: TimelineTable) -> list[int]:
    """Return the width of each column of a table in text."""
    lines = [table.header, *(row.cells for row in table.rows)]
    return [max(len(line[i]) for line in lines) for i in range(len(table.header))]


def _measure(table: TimelineTable) -> int:
    return sum(measure_columns(table)) + 2 * (len(table.header) - 1) + 3


def _with_columns(item: Timeline, named: frozenset[int], *, with_function: bool) -> TimelineTable:
    firsts = [min(parse_ranks(column)) for column in item.columns]
    find = _Finder(firsts)
    rows = []
    for op in item.ops:
        main = op.classes[0]
        cells = [
            _tell_cell(find(op, i), main, with_function=with_function) for i in range(len(firsts))
        ]
        rows.append(Row(op.mark, (str(op.sequence), _op(main), _shape(main), *cells)))
    sets = [parse_ranks(text) for text in item.columns]
    labels = [f"{label_ranks(ranks)}{_STAR if ranks <= named else ''}" for ranks in sets]
    header = ("seq", "op", "sizes", *labels)
    return _make(item, header, rows)


class _Finder:
    """Finds the class that the first rank of a column is in; the same sets come in every op."""

    def __init__(self, firsts: Sequence[int]) -> None:
        self._firsts = firsts
        self._known: dict[str, frozenset[int]] = {}

    def __call__(self, op: TimelineOp, column: int) -> RankClass | None:
        for part in op.classes:
            if part.ranks not in self._known:
                self._known[part.ranks] = parse_ranks(part.ranks)
            if self._firsts[column] in self._known[part.ranks]:
                return part
        return None


def _tell_cell(part: RankClass | None, main: RankClass, *, with_function: bool) -> str:
    if part is None:
        return ""
    words = [part.state]
    if part.op and part.op != main.op:
        words.append(_op(part))
    if part.op and part.sizes != main.sizes:
        words.append(_sizes(part))
    if part.op and part.dtypes != main.dtypes:
        words.append(_dtypes(part))
    site = _site(part)
    return " ".join(filter(None, [*words, site if with_function else site.partition(" ")[0]]))


def _with_rows(item: Timeline, named: frozenset[int]) -> TimelineTable:
    rows = [row for op in item.ops for row in _tell_classes(op, named)]
    return _make(item, ("seq", "op", "sizes", "ranks", "state", "called at"), rows)


def _tell_classes(op: TimelineOp, named: frozenset[int]) -> Iterator[Row]:
    """Yield a row for each of the largest classes, and for those that are named as the cause."""
    sets = [parse_ranks(part.ranks) for part in op.classes]
    left_out = 0
    for index, (part, ranks) in enumerate(zip(op.classes, sets, strict=True)):
        is_named = bool(ranks) and ranks <= named
        if index >= _MAX_CLASSES and not is_named:
            left_out += 1
            continue
        label = part.ranks if len(part.ranks) <= _RANKS_CHARS else f"{len(ranks)} ranks"
        number = "" if index else str(op.sequence)
        name = _op(part, op.op if op.is_p2p else "")
        frames = part.sites if len(part.sites) > 1 else []
        yield Row(
            "" if index else op.mark,
            (number, name, _shape(part), f"{label}{_STAR if is_named else ''}", part.state,
             _site(part)),
            tuple(show_line(f"{site.function} {site.file}:{site.line}") for site in frames),
        )  # fmt: skip
    if left_out:
        yield Row("", ("", f"{left_out} more sets of ranks", "", "", "", ""))


def _make(item: Timeline, header: tuple[str, ...], rows: Sequence[Row]) -> TimelineTable:
    used = [mark for mark in MARKS if any(row.mark == mark for row in rows)]
    meanings = [f"{MARKS[mark]} {_MEANINGS[mark]}" for mark in used]
    if any(cell.endswith(_STAR) for cell in (*header, *(row.cells[3] for row in rows))):
        meanings.append(f"{_STAR} named as the cause")
    return TimelineTable(
        title=_title(item),
        header=header,
        rows=tuple(rows),
        notes=tuple(_notes(item)),
        legend=" · ".join(meanings),
    )


def _title(item: Timeline) -> str:
    is_p2p = any(op.is_p2p for op in item.ops)
    desc = f" ({item.desc})" if item.desc and item.desc != item.group else ""
    shown = len(item.ops)
    what = "transfer" if is_p2p else "op"
    number = f"{item.recorded} {what}{'' if item.recorded == 1 else 's'}"
    count = number if shown >= item.recorded else f"{shown} of {number}"
    members = label_ranks(parse_ranks(item.members)) if item.members else "members unknown"
    return show_line(f"group {item.group}{desc}, {members}: {count}")


def _notes(item: Timeline) -> Iterator[str]:
    if item.alike:
        names = ", ".join(item.alike[:_NAMES_SHOWN])
        more = ", …" if len(item.alike) > _NAMES_SHOWN else ""
        plural = "group is" if len(item.alike) == 1 else "groups are"
        ranks = label_ranks(parse_ranks(item.alike_ranks))
        yield show_line(f"{len(item.alike)} more {plural} alike ({names}{more}): {ranks}")
    if item.mismatches:
        numbers = ", ".join(str(number) for number in item.first_mismatches[:_NUMBERS_SHOWN])
        more = ", …" if item.mismatches > len(item.first_mismatches[:_NUMBERS_SHOWN]) else ""
        verb = "does" if item.mismatches == 1 else "do"
        listed = f": {numbers}{more}" if numbers else ""
        yield f"{item.mismatches} of {item.recorded} ops {verb} not match{listed}"


def _op(part: RankClass, pair: str = "") -> str:
    return show_line(f"{part.op or 'no op'} {pair}" if pair else part.op)


def _shape(part: RankClass) -> str:
    """Write the sizes of the tensors and their type, e.g. ``[3,4] Float``."""
    return f"{_sizes(part)} {_dtypes(part)}".strip()


def _sizes(part: RankClass) -> str:
    """Write the sizes; many are counted."""
    texts = ["[" + ",".join(map(str, size)) + "]" for size in part.sizes]
    shown = " ".join(texts[:_MAX_SIZES])
    if len(texts) > 1 and len(set(texts)) == 1:
        shown = f"{len(texts)}×{texts[0]}"
    elif len(texts) > _MAX_SIZES:
        shown += f" and {len(texts) - _MAX_SIZES} more"
    return show_line(f"{show_line(shown, _SIZES_CHARS)}{'…' if part.sizes_vary else ''}")


def _dtypes(part: RankClass) -> str:
    return show_line("/".join(dict.fromkeys(part.dtypes)))


def _site(part: RankClass) -> str:
    if not part.sites:
        return ""
    site = part.sites[0]
    return show_line(f"{short_place(site.file, site.line)} {site.function}")


def render_tables(
    items: Sequence[Timeline],
    width: int,
    paint: Callable[[str, str], str],
    named: frozenset[int] = frozenset(),
) -> Iterator[str]:
    """Yield timelines as lines of text.

    Args:
        items: The timelines.
        width: The columns of text there are; longer rows are cut.
        paint: Colours a text for a role: ``strong``, ``frame`` or ``dim``.
        named: The ranks that are named as the cause.

    Yields:
        The lines, without line breaks.
    """
    for item in items:
        table = lay_out_timeline(item, width, named)
        yield paint("strong", show_line(table.title, width))
        widths = measure_columns(table)
        if table.rows:
            yield paint("frame", _line("", table.header, widths, width))
        for row in table.rows:
            text = _line(MARKS.get(row.mark, ""), row.cells, widths, width)
            yield paint("strong", text) if row.mark == "divergence" else text
            yield from (paint("dim", show_line(f"        {line}", width)) for line in row.stack)
        yield from (show_line(f"  {note}", width) for note in table.notes)
        if table.legend:
            yield paint("dim", show_line(f"  {table.legend}", width))
        yield ""


def _line(mark: str, cells: Sequence[str], widths: Sequence[int], width: int) -> str:
    # Numbers stand to the right, all else to the left.
    padded = [
        f"{cell:>{size}}" if index == 0 else f"{cell:<{size}}"
        for index, (cell, size) in enumerate(zip(cells, widths, strict=True))
    ]
    return show_line(f"{mark:>2} {'  '.join(padded)}".rstrip(), width)
