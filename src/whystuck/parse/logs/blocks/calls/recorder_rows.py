"""Entries of flight recorders that people print: rows of a table or dicts, each with its state.

Of ranks whose entry is the same, they may only say so: `rank 1 same`, `... (2-12 as 1)`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.calls.recorder_dicts import read_frames, read_pairs
from whystuck.parse.logs.blocks.stacks.headings import find_same_as, is_same_word
from whystuck.parse.logs.blocks.tables.cells import list_numbers, split_outside
from whystuck.parse.logs.blocks.tables.tabled import MAX_ROWS, MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_BACKENDS = ("nccl", "gloo", "hccl", "xccl", "ucc", "mpi")
RECORDER_MARKS = (
    b"coll_seq", b"collective_seq", b"seq_id", b"| state", b"profiling_name",
    # The heads of tables whose columns have other names: `rank seq op size state`.
    b"seq  ", b"seq\t", b"seq op", b"seq state", b"seq,op", b"seq, op", b"seq,state", b"seq, state",
    b"last_completed", b"last_enqueued",
    *(f"{one}:".encode() for one in _BACKENDS),
)  # fmt: skip
# What columns and keys are called; the first one of an entry is taken.
_COLUMNS = {
    "own": ("rank", "global_rank", "r"),
    "group": ("pg", "pg_name", "process_group", "group", "pg_desc", "pg_id"),
    "dtype": ("dtype", "dtypes", "input_dtypes", "input_dtype", "in_dtypes"),
    "seq": ("coll_seq", "collective_seq_id", "collective_seq", "seq", "seq_id", "coll_seq_id"),
    "op": ("op", "profiling_name", "op_name", "operation", "name", "collective", "optype"),
    "state": ("state", "status"),
    "sizes": ("input_sizes", "sizes", "size", "shape", "shapes", "input_shape", "in_sizes"),
    "site": (
        "site",
        "call_site",
        "callsite",
        "caller",
        "called_from",
        "frame",
        "where",
        "location",
        "code",
    ),
}
# How far a rank is in the group, which scripts print beside the oldest op that is not over.
_COUNTERS = {
    "enqueued": ("last_enqueued", "last_enq", "enqueued", "last_enqueued_collective"),
    "completed": (
        "last_completed",
        "last_done",
        "last_compl",
        "last_completed_collective",
        "last_completed_seq",
        "completed_seq",
    ),
}
_NEEDED = {"own", "seq", "op", "state"}
_STATE = re.compile(r"^(?:scheduled|started|completed)$")
_MOST_COLUMNS = 24
_MOST_SAID = 400
# Of what a rank is said to share with others, the last entries; and so many copies of them in all.
_MOST_SHARED, _MOST_COPIES = 64, 8192
_PAIR = 2
# `3 5032 nccl:all_reduce [[8]] started train.py 188`, as a loop over entries prints them
_BARE = re.compile(
    r"^[\s(\[]{0,4}(?:rank\s?|r)?(?P<own>\d{1,7})[,:\s]{1,12}(?P<seq>\d{1,12})[,\s]{1,12}['\"]?"
    rf"(?:{'|'.join(_BACKENDS)}):(?P<op>\w{{2,40}})['\"]?[,\s]"
    r"(?:.{0,400}?[\s,'\"])?(?P<state>scheduled|started|completed)\b"
)
# `rank 3  pg 0:default_pg  5031 nccl:all_reduce completed  5032 nccl:barrier started`: the last
# entries of a rank in one row, as people's scripts print them
_ROW = re.compile(
    r"^[\s(\[]{0,4}rank[ =:]?(?P<own>\d{1,7})\]?[,:\s|]{1,4}"
    r"(?:(?:pg|group|process_group)[ =:]{1,2}(?P<group>[\w:.-]{1,80})[,:\s|]{1,4})?(?=#?\d)"
)
_OF_ROW = re.compile(
    rf"[,;:\s|]{{0,6}}#?(?P<seq>\d{{1,12}})[,:\s]{{1,3}}(?:{'|'.join(_BACKENDS)}):(?P<op>\w{{2,40}})"
    r"[,:(\s]{1,3}(?P<state>scheduled|started|completed)\b\)?"
)
_MOST_IN_ROW = 16
# What may stand in a row beside: the sizes of tensors, and where the op was called.
_SIZES = re.compile(r"\[\[[\d, \[\]]{0,200}\]\]")
_CALLED = re.compile(
    r"([\w./~+-]{1,300}\.py)(?::|[, ]{1,3}(?:line )?)(\d{1,7})(?:[ ,:]{1,3}(?:in )?([\w<>.]+))?"
)
_OP_PREFIX = re.compile(r"^\w{1,12}:")


class RecorderReader:
    """Follows one table, or one list, at a time."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._mark = ""
        self._strangers = 0
        # The entries of each rank in it, and the rank of the last one.
        self._shown: dict[int, deque[dict[str, str]]] = {}
        self._copies = 0
        self._latest = UNKNOWN_RANK

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows, or tell whose entries are the same."""
        return bool(self._columns or self._shown)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the entries that it tells."""
        if is_mark and self._begins(line.text):
            return
        found = list(self._list_entries(line, is_mark=is_mark))
        for told in found:
            self._keep(told)
        found = found or list(self._list_same(line))
        yield from (TabledSeen("table.entry", row, line, told) for told in found)
        # Dots stand for rows that are left out.
        is_stranger = not found and any(char.isalnum() for char in line.text)
        self._strangers = 0 if found else self._strangers + is_stranger
        if self._strangers > MAX_STRANGERS:
            self._columns, self._mark, self._shown = [], "", {}

    def _begins(self, text: str) -> bool:
        mark = next((one for one in "|," if one in text), "")
        names = [name.lower() for name in _split(text, mark)]
        names = [_find_column(name) or name for name in names[:_MOST_COLUMNS]]
        # A bar or a comma behind the first column is taken for a prefix.
        is_head = set(names) >= _NEEDED and len(set(names)) == len(names)
        if is_head:
            self._columns, self._mark, self._strangers, self._shown = names, mark, 0, {}
        return is_head

    def _list_entries(self, line: LogLine, *, is_mark: bool) -> Iterator[dict[str, str]]:
        if self._columns:
            yield from self._read_row(line)
        elif is_mark and (told_in_row := _read_several(line.text)):
            yield from told_in_row
        elif is_mark and (entry := _BARE.match(line.text)) and int(entry["own"]) <= MAX_RANK:
            told = {"group": "", "sizes": "", **entry.groupdict(), "sites": _find_site(line.text)}
            if sizes := _SIZES.search(line.text):
                told["sizes"] = sizes[0]
            yield told
        elif is_mark and ("{" in line.text or "=" in line.text):
            for own, pairs in read_pairs(line):
                if told := _read_keys(own, pairs):
                    yield told

    def _read_row(self, line: LogLine) -> Iterator[dict[str, str]]:
        """Yield the entry of each rank that a row of the table is of."""
        cells = _split(line.text, self._mark)
        # A number before a bar is taken for a prefix.
        told = line.writer
        if len(cells) == len(self._columns) - 1 and told >= 0 and self._columns[0] == "own":
            cells = [str(told), *cells]
        groups = dict(zip(self._columns, cells, strict=False))
        if len(cells) != len(self._columns) or not _is_entry(groups):
            return
        told_of = {name: groups.get(name, "")[:80] for name in _COLUMNS}
        counters = {name: groups[name] for name in _COUNTERS if groups.get(name, "").isdecimal()}
        told_of |= counters | _clean(told_of) | {"sites": _find_site(told_of.pop("site"))}
        yield from (told_of | {"own": str(rank)} for rank in list_numbers(groups["own"]))

    def _keep(self, told: dict[str, str]) -> None:
        rank = int(told["own"])
        if len(self._shown) < MAX_ROWS:
            self._shown.setdefault(rank, deque(maxlen=_MOST_SHARED)).append(told)
            self._latest = rank

    def _list_same(self, line: LogLine) -> Iterator[dict[str, str]]:
        """Yield the entries of ranks of which a line says that they have those of another one."""
        text = line.text[:_MOST_SAID].strip(" \t|.()\u2026")
        if line.rank != UNKNOWN_RANK and is_same_word(text):
            # What people write of a rank looks as if the rank had written it.
            text = f"rank {line.rank}: {text}"
        elif text[:1].isdecimal():
            text = f"ranks {text}"
        ranks, whose = find_same_as(text) or (frozenset[int](), UNKNOWN_RANK)
        entries = self._shown.get(whose if whose != UNKNOWN_RANK else self._latest, ())
        for rank in sorted(ranks - self._shown.keys()):
            self._copies += len(entries)
            if not entries or self._copies > _MOST_COPIES:
                return
            yield from (told | {"own": str(rank)} for told in entries)


def _is_entry(told: Mapping[str, str]) -> bool:
    """Tell whether something has the state and the number of an entry, and the name of its op."""
    is_told = bool(_STATE.match(told.get("state", "").lower())) and bool(told.get("op"))
    return is_told and told.get("seq", "").isdecimal()


def _read_several(text: str) -> list[dict[str, str]]:
    """Return the entries of a row that has some of one rank, none where it is no such row."""
    head = _ROW.match(text)
    if head is None or int(head["own"]) > MAX_RANK:
        return []
    found: list[dict[str, str]] = []
    end, group = head.end(), head["group"] or ""
    while len(found) < _MOST_IN_ROW and (entry := _OF_ROW.match(text, end)):
        told = {"own": head["own"], "sizes": "", "sites": "", "dtype": "", "group": group}
        found.append(told | entry.groupdict())
        end = entry.end()
    is_named = len(found) > 1 or bool(group and found)
    return [told | _clean(told) for told in found] if is_named else []


def _clean(told: Mapping[str, str]) -> dict[str, str]:
    """Return the values of an entry as other readers write them."""
    words = re.findall(r"[\w.-]+", told["group"])
    group = f"{words[0]} ({words[1]})" if len(words) == _PAIR else told["group"]
    dtype = re.search(r"\w+", told["dtype"])
    return {
        "state": told["state"].lower(),
        "op": _OP_PREFIX.sub("", told["op"]),
        "group": group.removesuffix(" (default_pg)"),
        "dtype": dtype[0] if dtype else "",
    }


def _read_keys(own: str, pairs: Mapping[str, str]) -> dict[str, str]:
    """Return the entry that pairs are, none where they are none."""
    known = {
        name: next((pairs[word] for word in words if word in pairs), "")[:_MOST_SAID]
        for name, words in _COLUMNS.items()
    }
    # Those of transfers have numbers of their own.
    if not _is_entry(known) or pairs.get("is_p2p", "").lower() == "true":
        return {}
    site = _find_site(known.pop("site"))
    sites = read_frames(pairs.get("frames", "")) or site
    return known | _clean(known) | {"own": own, "sites": sites}


def _find_site(text: str) -> str:
    """Return the file, line and function that a text names, with tabs between them."""
    match = _CALLED.search(text)
    return f"{match[1]}\t{match[2]}\t{match[3] or '<unknown>'}" if match else ""


def _find_column(name: str) -> str:
    columns = (*_COLUMNS.items(), *_COUNTERS.items())
    return next((known for known, words in columns if name in words), "")


def _split(text: str, mark: str) -> list[str]:
    """Split a row at its bars, commas or blanks."""
    if mark:
        return split_outside(text.strip(" |"), mark)
    return [cell for cell in split_outside(text, " \t") if cell]
