"""Flight-recorder dumps of torch and of torchcomms, pickle or JSON, schema 2.2 to 2.10.

gloo specifics: ``state`` is always "scheduled", so that ``retired`` is the truth about
completion, and ``pg_config`` is empty, so that members come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.collector import collector_paused
from whystuck.evidence.ops.collectives import CallSite, GroupName, OpForm
from whystuck.parse.dumps.coalesced import close_batches, find_batches
from whystuck.parse.dumps.counters import Counter, RankCounters, read_counters
from whystuck.parse.dumps.fast.columns import Columns
from whystuck.parse.dumps.fast.entries import (
    Entry,
    Kept,
    mark_point_to_point,
    read_entries,
    read_kept,
    read_scan,
)
from whystuck.parse.dumps.fast.entry_scan import Scan, scan_pickles
from whystuck.parse.dumps.fast.equal_values import find_first_alike
from whystuck.parse.dumps.fast.vocabulary import Vocabulary
from whystuck.parse.dumps.hook_records import count_in_groups, drop_other_counters, has_hooks
from whystuck.parse.dumps.safe_pickle import load_plain_pickle
from whystuck.parse.errors import ParseError
from whystuck.parse.weight import check_json

T = TypeVar("T")

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


@dataclass(frozen=True)
class RawDump:
    """The bytes of one dump, and what it does not say itself.

    ``artifact`` is the path to cite. ``members`` are the ranks of each group by name, where known
    from elsewhere; the dumps of gloo do not say.
    """

    data: bytes
    rank: int
    artifact: str
    members: Mapping[str, Sequence[int]] | None = None


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
    raw = RawDump(data, rank, artifact, members)
    (result,) = parse_flight_recorders([raw], words, side_by_side=side_by_side)
    if isinstance(result, ParseError):
        raise result
    return result


def parse_flight_recorders(
    raw: Sequence[RawDump], vocabulary: Vocabulary, *, side_by_side: bool = True
) -> list[RankDump | ParseError]:
    """Read some dumps at a time, which is faster than one after the other.

    Args:
        raw: The dumps.
        vocabulary: What dumps read before speak of; grows.
        side_by_side: Whether the entries of large pickles may be read as arrays.

    Returns:
        The ops of each rank, or why its dump cannot be read.
    """
    with collector_paused():
        results: dict[int, RankDump | ParseError] = {}
        scans = (
            scan_pickles([one.data for one in raw], vocabulary.templates) if side_by_side else []
        )
        for positions, scan in scans:
            some = [raw[position] for position in positions]
            read = zip(positions, _read_scanned(scan, some, vocabulary), strict=True)
            results |= {position: result for position, result in read if result is not None}
        for position, one in enumerate(raw):
            if position not in results:
                results[position] = _read_whole(one, vocabulary)
    return [results[position] for position in range(len(raw))]


def _read_scanned(
    scan: Scan, raw: Sequence[RawDump], vocabulary: Vocabulary
) -> Sequence[RankDump | ParseError | None]:
    """Read the dumps of a scan; None for those that are not what the scan took them for."""
    heads: list[_Head | ParseError | None] = []
    kept: list[Kept | None] = []
    for one, pickle, count in zip(raw, scan.pickles, scan.split_kept(), strict=True):
        content = _load_kept(pickle, count)
        read = None if content is None else _read_content(content, one, vocabulary, read_kept)
        heads.append(read[0] if isinstance(read, tuple) else read)
        kept.append(read[1] if isinstance(read, tuple) else None)
    if all(one is None for one in kept):
        return [head if isinstance(head, ParseError) else None for head in heads]
    columns, misread = read_scan(scan, kept)
    for number in misread:
        heads[number] = heads[number] if kept[number] is None else None
    return _finish(heads, columns, scan.firsts.tolist(), vocabulary)


def _load_kept(pickle: bytes, count: int) -> Mapping[str, Any] | None:
    """Load the entries that a scan has kept; None when they are not what the scan took them for."""
    try:
        content = load_plain_pickle(pickle)
    except ParseError:
        return None
    if not isinstance(content, dict) or not is_flight_recorder(content):
        return None
    entries = content.get("entries")
    return content if isinstance(entries, list) and len(entries) == count else None


def _read_whole(raw: RawDump, vocabulary: Vocabulary) -> RankDump | ParseError:
    """Read a dump entry by entry."""
    try:
        content = _decode(raw.data)
    except ParseError as error:
        return error
    if not isinstance(content, dict) or not is_flight_recorder(content):
        return ParseError("not a flight-recorder dump")
    read = _read_content(content, raw, vocabulary, read_entries)
    if isinstance(read, ParseError):
        return read
    head, columns = read
    (result,) = _finish([head], columns, [0, len(columns)], vocabulary)
    return ParseError("damaged flight-recorder dump") if result is None else result


def _decode(data: bytes) -> object:
    if data[:64].lstrip()[:1] not in (b"{", b"["):
        return load_plain_pickle(data)
    check_json(data)
    try:
        return msgspec.json.decode(data)
    except MemoryError as error:
        raise ParseError("the JSON needs more memory than there is") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ParseError(f"not readable as JSON ({str(error)[:120]})") from error


@dataclass(frozen=True)
class _Head:
    """What a dump tells beside its entries."""

    raw: RawDump
    version: str
    counters: tuple[Counter, ...]
    config: tuple[int, ...]


def _read_content(
    content: Mapping[str, Any],
    raw: RawDump,
    vocabulary: Vocabulary,
    read: Callable[[Sequence[Entry], Vocabulary, Callable[[Any], int]], T],
) -> tuple[_Head, T] | ParseError:
    """Read what a decoded dump holds; its entries as ``read`` does."""
    try:
        ranks_by_name, config = _read_config(content.get("pg_config") or {}, vocabulary)
        ranks_by_name |= raw.members or {}

        def number_group(key: tuple[Any, ...]) -> int:
            name, desc = (*key[:2], "", "")[:2]
            return vocabulary.add_group(name, desc, ranks_by_name.get(name, ""))

        entries = read(content.get("entries") or [], vocabulary, number_group)
        counters = read_counters(content.get("pg_status") or {})
    except _BAD_CONTENT as error:
        return _blame(error)
    return _Head(raw, str(content.get("version", ""))[:16], counters, config), entries


def _blame(error: Exception) -> ParseError:
    # The name only: the text of a KeyError can be a value of any size and depth.
    return ParseError(f"damaged flight-recorder dump ({type(error).__name__})")


def _finish(
    heads: Sequence[_Head | ParseError | None],
    columns: Columns,
    firsts: Sequence[int],
    vocabulary: Vocabulary,
) -> Sequence[RankDump | ParseError | None]:
    """Make dumps of their columns, which are one after the other; what is no head stays."""
    results: list[RankDump | ParseError | _Head | None] = list(heads)
    dump = np.repeat(np.arange(len(heads)), np.diff(firsts))
    mark_point_to_point(columns, vocabulary)
    batches = set(find_batches(columns, dump, vocabulary.forms))
    hooked = has_hooks(vocabulary)
    groups = _find_groups(columns, dump, len(heads))
    for number, (head, first, end) in enumerate(zip(heads, firsts, firsts[1:], strict=False)):
        if not isinstance(head, _Head):
            continue
        part = columns.cut(first, end)
        try:
            if number in batches:
                completed = {item.pg_id: item.completed for item in head.counters}
                close_batches(part, vocabulary.forms, completed)
            count_in_groups(part, vocabulary)
            if hooked:
                groups[number] = drop_other_counters(groups[number], part, vocabulary)
        except ParseError as error:
            results[number] = error
        except _BAD_CONTENT as error:
            results[number] = _blame(error)
    record, narrow = columns.record, columns.without_scratch()
    return [
        RankDump(
            rank=result.raw.rank,
            artifact=result.raw.artifact,
            version=result.version,
            first_record=int(record[first]) if end > first else 0,
            columns=narrow.cut(first, end),
            counters=RankCounters(result.raw.rank, result.counters, result.config, by_pg_id),
            vocabulary=vocabulary,
        )
        if isinstance(result, _Head)
        else result
        for result, first, end, by_pg_id in zip(results, firsts, firsts[1:], groups, strict=False)
    ]


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


def _find_groups(
    columns: Columns, dump: NDArray[np.intp], count: int
) -> list[dict[int, int | None]]:
    """Tell for each dump the group of each of the numbers that its rank gives its groups.

    None stands for doubt.
    """
    found: list[dict[int, int | None]] = [{} for _dump in range(count)]
    pairs = (columns.pg_id << _HALF_BITS) | columns.group
    first = find_first_alike(pairs.astype(np.uint64), dump)
    rows = np.flatnonzero(first == np.arange(len(first)))
    for number, pair in zip(dump[rows].tolist(), pairs[rows].tolist(), strict=True):
        pg_id, named = pair >> _HALF_BITS, pair & _HALF_MASK
        found[number][pg_id] = None if pg_id in found[number] else named
    return found
