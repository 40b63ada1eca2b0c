"""What recorders that are fed by hooks count in another way than torch's own backends.

torchcomms has one counter for all groups together, and puts the description of a group where torch
has the backend (``world:all_reduce``). torch's hooks for any backend (``c10d:allreduce``) keep
numbers of calls where the others keep sequence numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from whystuck.parse.dumps.fast.columns import Columns
from whystuck.parse.dumps.fast.vocabulary import Vocabulary
from whystuck.parse.errors import ParseError

_HOOK_BACKEND = "c10d"


def count_in_groups(columns: Columns, vocabulary: Vocabulary) -> None:
    """Give the ops of torchcomms the sequence numbers of their groups.

    Args:
        columns: The entries of one dump; changed in place.
        vocabulary: What the numbers in them mean.

    Raises:
        ParseError: Older ops are missing, so that the place of the others is not known.
    """
    if not _has_one_counter(columns, vocabulary):
        return
    if not np.array_equal(columns.record, np.arange(len(columns))):
        raise ParseError(
            "its ops are numbered over all groups together and some are missing, "
            "so that they cannot be matched with those of other ranks"
        )
    key = columns.group * 2 + columns.is_p2p
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    size = np.diff(np.append(first, len(order)))
    columns.seq[order] = np.arange(len(order)) - np.repeat(first, size) + 1


def _has_one_counter(columns: Columns, vocabulary: Vocabulary) -> bool:
    if len(columns) == 0:
        return False
    backend = vocabulary.forms[columns.form[0]].backend
    if not backend or backend != vocabulary.groups[columns.group[0]].desc:
        return False
    return bool(columns.is_p2p.any() or (columns.group != columns.group[0]).any())


def has_hooks(vocabulary: Vocabulary) -> bool:
    """Tell whether any op was recorded by torch's hooks."""
    return any(form.backend == _HOOK_BACKEND for form in vocabulary.forms)


def drop_other_counters(
    group_by_pg_id: Mapping[int, int | None], columns: Columns, vocabulary: Vocabulary
) -> dict[int, int | None]:
    """Forget the groups whose counters are no sequence numbers.

    Args:
        group_by_pg_id: What the entries tell of the numbers of groups.
        columns: The entries.
        vocabulary: What the numbers in them mean.

    Returns:
        The same with None for those groups.
    """
    hooked = np.array([form.backend == _HOOK_BACKEND for form in vocabulary.forms], dtype=np.bool_)
    other = set(np.unique(columns.group[hooked[columns.form]]).tolist())
    return {pg_id: None if group in other else group for pg_id, group in group_by_pg_id.items()}
