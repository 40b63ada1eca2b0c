"""Entries of flight recorders that people print as a table: a row of each, with its state."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines import LogLine

_BACKENDS = ("nccl", "gloo", "hccl", "xccl", "ucc", "mpi")
RECORDER_MARKS = (
    b"coll_seq", b"collective_seq", b"seq_id", b"| state", b"profiling_name",
    *(f"{one}:".encode() for one in _BACKENDS),
)  # fmt: skip
# What columns are called.
_COLUMNS = {
    "own": ("rank", "global_rank", "r"),
    "group": ("pg", "pg_name", "process_group", "group", "pg_desc", "pg_id"),
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
_NEEDED = {"own", "seq", "op", "state"}
_STATE = re.compile(r"^(?:scheduled|started|completed)$")
_MOST_COLUMNS = 24
# `3 5032 nccl:all_reduce [[8]] started train.py 188`, as a loop over entries prints them
_BARE = re.compile(
    r"^[\s(\[]{0,4}(?:rank\s?|r)?(?P<own>\d{1,7})[,:\s]{1,3}(?P<seq>\d{1,12})[,\s]{1,3}['\"]?"
    rf"(?:{'|'.join(_BACKENDS)}):(?P<op>\w{{2,40}})['\"]?[,\s]"
    r"(?:.{0,400}?[\s,'\"])?(?P<state>scheduled|started|completed)\b"
)
# What may stand in a row beside: the sizes of tensors, and where the op was called.
_SIZES = re.compile(r"\[\[[\d, \[\]]{0,200}\]\]")
_CALLED = re.compile(
    r"([\w./~+-]{1,300}\.py)(?::|[, ]{1,3}(?:line )?)(\d{1,7})(?:[ ,:]{1,3}(?:in )?([\w<>.]+))?"
)
_OP_PREFIX = re.compile(r"^\w{1,12}:")


class RecorderReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._mark = ""
        self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._columns)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the entry that it tells."""
        if is_mark and self._begins(line.text):
            return
        if self._columns:
            yield from self._read_entry(line, row)
        elif is_mark and (entry := _BARE.match(line.text)) and int(entry["own"]) <= MAX_RANK:
            told = {"group": "", "sizes": "", **entry.groupdict(), "sites": _find_site(line.text)}
            if sizes := _SIZES.search(line.text):
                told["sizes"] = sizes[0]
            yield TabledSeen("table.entry", row, line, told)

    def _begins(self, text: str) -> bool:
        mark = next((one for one in "|," if one in text), "")
        names = [name.lower() for name in _split(text, mark)]
        names = [_find_column(name) or name for name in names[:_MOST_COLUMNS]]
        # A bar or a comma behind the first column is taken for a prefix.
        is_head = set(names) >= _NEEDED and len(set(names)) == len(names)
        if is_head:
            self._columns, self._mark, self._strangers = names, mark, 0
        return is_head

    def _read_entry(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        cells = _split(line.text, self._mark)
        # A number before a bar is taken for a prefix.
        told = line.writer
        if len(cells) == len(self._columns) - 1 and told >= 0 and self._columns[0] == "own":
            cells = [str(told), *cells]
        groups = dict(zip(self._columns, cells, strict=False))
        is_entry = len(cells) == len(self._columns) and bool(_STATE.match(groups["state"].lower()))
        is_entry = is_entry and groups["own"].isdecimal() and groups["seq"].isdecimal()
        if not is_entry or int(groups["own"][:8]) > MAX_RANK:
            self._end_soon(line.text)
            return
        self._strangers = 0
        told_of = {name: groups.get(name, "")[:80] for name in _COLUMNS}
        told_of |= {"state": told_of["state"].lower(), "op": _OP_PREFIX.sub("", told_of["op"])}
        told_of["sites"] = _find_site(told_of.pop("site"))
        yield TabledSeen("table.entry", row, line, told_of)

    def _end_soon(self, text: str) -> None:
        self._strangers += any(char.isalnum() for char in text)
        if self._strangers > MAX_STRANGERS:
            self._columns, self._mark = [], ""


def _find_site(text: str) -> str:
    """Return the file, line and function that a text names, with tabs between them."""
    match = _CALLED.search(text)
    return f"{match[1]}\t{match[2]}\t{match[3] or '<unknown>'}" if match else ""


def _find_column(name: str) -> str:
    return next((known for known, words in _COLUMNS.items() if name in words), "")


def _split(text: str, mark: str) -> list[str]:
    """Split a row at its bars, commas or blanks."""
    return [cell.strip() for cell in text.strip(" |").split(mark)] if mark else text.split()
