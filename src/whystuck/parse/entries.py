"""The entries of one dump to columns: one pass, few steps for each entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from whystuck.evidence.collectives import IntColumn
from whystuck.parse.coalesced import close_batches
from whystuck.parse.columns import Columns
from whystuck.parse.vocabulary import RawForm, Vocabulary

Entry = Mapping[str, Any]

_POINT_TO_POINT = ("send", "recv")
_STARTED = ("started", "completed")


def read_entries(
    entries: Sequence[Entry],
    vocabulary: Vocabulary,
    number_group: Callable[[Any], int],
) -> Columns:
    """Turn the entries of one dump into columns.

    Args:
        entries: The entries, oldest first.
        vocabulary: Numbers ops and call sites.
        number_group: Numbers the value of ``process_group``.

    Returns:
        The columns; ops that were issued as one end as one.
    """
    form = _number_forms(entries, vocabulary)
    named_p2p = np.array([item.op in _POINT_TO_POINT for item in vocabulary.forms], dtype=np.bool_)
    is_p2p = np.array([bool(entry.get("is_p2p")) for entry in entries], dtype=np.bool_)
    is_p2p |= named_p2p[form] if len(form) else False
    state = [entry.get("state") for entry in entries]
    started_ns = read_ints(entries, "time_discovered_started_ns")
    done = np.array([value == "completed" for value in state], dtype=np.bool_)
    done |= np.array([bool(entry.get("retired")) for entry in entries], dtype=np.bool_)
    started = np.array([value in _STARTED for value in state], dtype=np.bool_) | (started_ns > 0)
    columns = Columns(
        group=_number_groups(entries, number_group),
        seq=np.where(
            is_p2p, read_ints(entries, "p2p_seq_id"), read_ints(entries, "collective_seq_id")
        ),
        form=form,
        site=_number_sites(entries, vocabulary),
        record=read_ints(entries, "record_id"),
        created_ns=read_ints(entries, "time_created_ns"),
        started_ns=started_ns,
        completed_ns=read_ints(entries, "time_discovered_completed_ns"),
        timeout_ms=read_ints(entries, "timeout_ms"),
        is_p2p=is_p2p,
        started=started,
        done=done,
    )
    close_batches(columns, vocabulary.forms)
    return columns


def read_ints(entries: Sequence[Entry], key: str) -> IntColumn:
    """Read one number of each entry.

    Args:
        entries: The entries.
        key: The name of the number.

    Returns:
        The numbers, 0 where there is none.
    """
    try:
        return _to_column(map(itemgetter(key), entries), len(entries))
    except (KeyError, TypeError):  # missing, or null
        return _to_column((int(entry.get(key) or 0) for entry in entries), len(entries))


def _to_column(values: Iterable[int], count: int) -> IntColumn:
    return np.fromiter(values, dtype=np.int64, count=count)


def _number_groups(entries: Sequence[Entry], number_group: Callable[[Any], int]) -> IntColumn:
    number_by_key: dict[tuple[Any, ...], int] = {}
    numbers = []
    for entry in entries:
        key = tuple(entry.get("process_group") or ())
        number = number_by_key.get(key)
        if number is None:
            number = number_by_key[key] = number_group(key)
        numbers.append(number)
    return _to_column(numbers, len(numbers))


def _number_forms(entries: Sequence[Entry], vocabulary: Vocabulary) -> IntColumn:
    # A pickle may share one list between many entries, so that identity is the fast key.
    number_by_identity: dict[tuple[int, ...], int] = {}
    numbers = []
    for entry in entries:
        raw = RawForm(
            entry["profiling_name"],
            entry.get("input_sizes"),
            entry.get("output_sizes"),
            entry.get("input_dtypes"),
            entry.get("output_dtypes"),
        )
        identity = tuple(map(id, raw))
        number = number_by_identity.get(identity)
        if number is None:
            number = number_by_identity[identity] = vocabulary.add_form(raw)
        numbers.append(number)
    return _to_column(numbers, len(numbers))


def _number_sites(entries: Sequence[Entry], vocabulary: Vocabulary) -> IntColumn:
    number_by_identity: dict[tuple[int, ...], int] = {}
    numbers = []
    for entry in entries:
        frames = entry.get("frames") or ()
        # Torch writes each frame once and each list of frames again.
        identity = tuple(map(id, frames))
        number = number_by_identity.get(identity)
        if number is None:
            number = number_by_identity[identity] = vocabulary.add_site(frames)
        numbers.append(number)
    return _to_column(numbers, len(numbers))
