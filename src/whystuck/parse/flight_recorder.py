"""Flight-recorder dumps of torch and of torchcomms, pickle or JSON, schema 2.2 to 2.10.

gloo specifics: ``state`` is always "scheduled", so that ``retired`` is the truth about
completion, and ``pg_config`` is empty, so that members come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from whystuck.evidence.collectives import CallSite, GroupName, IntColumn, OpForm
from whystuck.parse.columns import Columns
from whystuck.parse.counters import RankCounters, read_counters
from whystuck.parse.entries import Entry, finish_columns, read_entries, read_scan
from whystuck.parse.errors import ParseError
from whystuck.parse.hooks import count_in_groups, drop_other_counters
from whystuck.parse.pickle_scan import Scan, scan_pickle
from whystuck.parse.safe_pickle import collector_paused, load_plain_pickle
from whystuck.parse.vocabulary import Vocabulary

_HALF_BITS = 32
_HALF_MASK = (1 << _HALF_BITS) - 1
_BAD_CONTENT = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True)
class RankDump:
    """One dump file: its entries as columns, whose numbers are those of ``vocabulary``.

    ``first_record`` is the number of the first entry; above 0, older ones are missing.
    """

    rank: int
    artifact: str
    version: str
    first_record: int
    columns: Columns
    counters: RankCounters
    vocabulary: Vocabulary
    modified_ns: int = 0

    def __len__(self) -> int:
        """Return the number of ops."""
        return len(self.columns)

    @property
    def groups(self) -> Sequence[GroupName]:
        """The groups that ``columns.group`` indexes."""
        return self.vocabulary.groups

    @property
    def forms(self) -> Sequence[OpForm]:
        """The ops that ``columns.form`` indexes."""
        return self.vocabulary.forms

    @property
    def sites(self) -> Sequence[CallSite]:
        """The call sites that ``columns.site`` indexes."""
        return self.vocabulary.sites


def is_flight_recorder(content: object) -> bool:
    """Tell whether a decoded pickle or JSON value is a flight-recorder dump."""
    return (
        isinstance(content, dict)
        and "version" in content
        and any(key in content for key in ("entries", "pg_status", "pg_config"))
    )


def parse_flight_recorder(
    data: bytes,
    *,
    rank: int,
    artifact: str,
    members: Mapping[str, Sequence[int]] | None = None,
    vocabulary: Vocabulary | None = None,
    side_by_side: bool = True,
) -> RankDump:
    """Read one dump.

    Args:
        data: The file, pickle or JSON.
        rank: The rank that wrote it; a dump does not say.
        artifact: The path to cite.
        members: Ranks of each group by name, where known from elsewhere; the dumps of gloo
            do not say.
        vocabulary: What dumps read before speak of. Dumps that share one are merged faster.
        side_by_side: Whether the entries of a large pickle may be read as arrays.

    Returns:
        The ops of that rank, oldest first.

    Raises:
        ParseError: It is no flight-recorder dump, or a damaged one.
    """
    words = Vocabulary() if vocabulary is None else vocabulary
    scan = scan_pickle(data, words.molds) if side_by_side else None
    content = None if scan is None else _load_kept(scan)
    if content is None:
        scan, content = None, _decode(data)
    if not isinstance(content, dict) or not is_flight_recorder(content):
        raise ParseError("not a flight-recorder dump")
    try:
        with collector_paused():
            return _read_dump(content, scan, rank, artifact, members or {}, words)
    except _BAD_CONTENT as error:
        # The name only: the text of a KeyError can be a value of any size and depth.
        raise ParseError(f"damaged flight-recorder dump ({type(error).__name__})") from error


def _load_kept(scan: Scan) -> object:
    """Load the entries that a scan has kept; None when they are not what the scan took them for."""
    try:
        content = load_plain_pickle(scan.pickle)
    except ParseError:
        return None
    if not isinstance(content, dict) or not is_flight_recorder(content):
        return None
    entries = content.get("entries")
    return content if isinstance(entries, list) and len(entries) == len(scan.kept) else None


def _decode(data: bytes) -> object:
    if data[:64].lstrip()[:1] not in (b"{", b"["):
        return load_plain_pickle(data)
    try:
        return msgspec.json.decode(data)
    except MemoryError as error:
        raise ParseError("the JSON needs more memory than there is") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ParseError(f"not readable as JSON ({str(error)[:120]})") from error


def _read_dump(
    content: Mapping[str, Any],
    scan: Scan | None,
    rank: int,
    artifact: str,
    known: Mapping[str, Sequence[int]],
    vocabulary: Vocabulary,
) -> RankDump:
    entries: Sequence[Entry] = content.get("entries") or []
    ranks_by_name, config = _read_config(content.get("pg_config") or {}, vocabulary)
    ranks_by_name |= known

    def number_group(key: tuple[Any, ...]) -> int:
        name, desc = (*key[:2], "", "")[:2]
        return vocabulary.add_group(name, desc, ranks_by_name.get(name, ""))

    if scan is None:
        columns = read_entries(entries, vocabulary, number_group)
    else:
        columns = read_scan(scan, entries, vocabulary, number_group)
    counters = read_counters(content.get("pg_status") or {})
    finish_columns(columns, vocabulary, {item.pg_id: item.completed for item in counters})
    count_in_groups(columns, vocabulary)
    group_by_pg_id = _find_groups(columns.pg_id, columns.group)
    first_record = int(columns.record[0]) if len(columns) else 0
    return RankDump(
        rank=rank,
        artifact=artifact,
        version=str(content.get("version", ""))[:16],
        first_record=first_record,
        columns=columns.without_scratch(),
        counters=RankCounters(
            rank,
            counters,
            config,
            drop_other_counters(group_by_pg_id, columns, vocabulary),
        ),
        vocabulary=vocabulary,
    )


def _read_config(
    pg_config: Mapping[str, Any], vocabulary: Vocabulary
) -> tuple[dict[str, object], tuple[int, ...]]:
    """Read ``pg_config``: the members of each group by name, and the numbers of the groups."""
    ranks_by_name: dict[str, object] = {}
    numbers = []
    for config in pg_config.values():
        name, ranks = str(config.get("name") or ""), config.get("ranks")
        if name and ranks and ranks != "[]":
            ranks_by_name[name] = ranks
            numbers.append(vocabulary.add_group(name, str(config.get("desc") or ""), ranks))
    return ranks_by_name, tuple(numbers)


def _find_groups(pg_id: IntColumn, group: IntColumn) -> dict[int, int | None]:
    """Tell the group of each of the numbers that a rank gives its groups, None in doubt."""
    found: dict[int, int | None] = {}
    pairs = np.unique((pg_id << _HALF_BITS) | group).tolist()
    for number, named in ((pair >> _HALF_BITS, pair & _HALF_MASK) for pair in pairs):
        found[number] = None if number in found else named
    return found
