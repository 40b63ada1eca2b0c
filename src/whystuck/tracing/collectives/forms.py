"""What a collective was, from the arguments that Kineto writes: its kind, group and sizes."""

from __future__ import annotations

import json
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import UNKNOWN, Sparse, Trace
from whystuck.tracing.collectives.members import (
    number_text,
    read_member_list,
    write_members,
)
from whystuck.tracing.collectives.ops import (
    UNEVEN_OPS,
    VAGUE_OPS,
    count_dtype_bytes,
    count_op_bytes,
    name_op,
)
from whystuck.tracing.collectives.rows import CommRows, Rows
from whystuck.tracing.view import TraceView

_MAX_BYTES = 1 << 62


class Form(NamedTuple):
    """What all calls of one form have in common."""

    op: str
    dtype: str
    group: str
    group_desc: str
    members: str
    group_size: int
    bytes: int
    in_bytes: int
    out_bytes: int
    group_key: int
    kind_key: int


def _whole(sparse: Sparse, rows: Rows) -> NDArray[np.int64]:
    """Values as whole numbers; -1 where there is none, or none that can be one."""
    values = sparse.at(rows).astype(np.float64)
    is_bad = ~np.isfinite(values) | (values < 0) | (values > _MAX_BYTES)
    if sparse.value.dtype.kind in "iu":
        return np.where(is_bad, UNKNOWN, sparse.at(rows).astype(np.int64))
    return np.where(is_bad, UNKNOWN, np.where(is_bad, 0, values).astype(np.int64))


def read_argument(trace: Trace, name: str, rows: CommRows) -> NDArray[np.int64]:
    """What the kernel itself tells, or otherwise the op of the host."""
    sparse = trace.get(name)
    own = _whole(sparse, rows.work)
    return np.where(own >= 0, own, _whole(sparse, rows.told))


def find_forms(view: TraceView, rows: CommRows) -> tuple[list[Form], Rows]:
    """Tell the few different forms of calls, and which each call has."""
    trace, name = view.trace, view.events.name
    dims = [_whole(trace.get("input_dims:text"), one) for one in (rows.annotation, rows.told)]
    types = [_whole(trace.get("input_types:text"), one) for one in (rows.annotation, rows.told)]
    matrix = (
        np.stack(
            [
                name[rows.work],
                np.where(rows.annotation >= 0, name[rows.annotation], UNKNOWN),
                *(read_argument(trace, one, rows) for one in _TOLD),
                np.where(dims[0] >= 0, dims[0], dims[1]),
                np.where(dims[0] >= 0, types[0], types[1]),
            ],
            axis=1,
        )
        if len(rows.work)
        else np.empty((0, 2 + len(_TOLD) + 2), dtype=np.int64)
    )
    unique, form = np.unique(matrix, axis=0, return_inverse=True)
    return [_make_form(trace, one) for one in unique.tolist()], form.reshape(-1)


_TOLD = (
    "collective:text",
    "group:text",
    "group_desc:text",
    "group_ranks:text",
    "group_size",
    "dtype:text",
    "in_elements",
    "out_elements",
)


def _make_form(trace: Trace, values: list[int]) -> Form:
    kernel, annotation, collective, group, desc, ranks, size, dtype, given, got, dims, types = (
        values
    )
    texts, names = trace.texts, trace.names
    names_of_op = (text_at(texts, collective), text_at(names, annotation), text_at(names, kernel))
    op = _choose_op(names_of_op)
    name, members = _find_group(trace, text_at(texts, group), text_at(texts, ranks))
    size = size if size >= 0 else len(members) or UNKNOWN
    members_text = write_members(members)
    type_name = text_at(texts, dtype)
    wide = count_dtype_bytes(type_name)
    in_bytes, out_bytes = _multiply(given, wide), _multiply(got, wide)
    if in_bytes < 0 and out_bytes < 0:
        in_bytes, type_name = _measure_dims(text_at(texts, dims), text_at(texts, types), type_name)
    total = count_op_bytes(op, size, in_bytes, out_bytes)
    is_known = bool(name or members)
    return Form(
        op=op,
        dtype=type_name,
        group=name,
        group_desc=text_at(texts, desc),
        members=members_text,
        group_size=size,
        bytes=total,
        in_bytes=in_bytes,
        out_bytes=out_bytes,
        group_key=number_text("group", name, members_text or text_at(texts, ranks), size)
        if is_known
        else UNKNOWN,
        kind_key=number_text(op, type_name, "" if op in UNEVEN_OPS else total, size),
    )


def text_at(texts: tuple[str, ...], place: int) -> str:
    """Return a text by its number; an unknown one is empty."""
    return texts[place] if 0 <= place < len(texts) else ""


def _multiply(elements: int, wide: int) -> int:
    return elements * wide if 0 <= elements <= _MAX_BYTES // 16 and wide > 0 else UNKNOWN


def _choose_op(names: tuple[str, ...]) -> str:
    """Choose the first name that tells an op, the vague ones only where no other tells one."""
    ops = [name_op(name) for name in names if name]
    exact = [op for op in ops if op not in VAGUE_OPS]
    vague = [op for op in reversed(ops) if op != "unknown"]
    return next(iter(exact or vague), "unknown")


def _find_group(trace: Trace, name: str, ranks: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and the members of a group; no members when the trace does not tell all."""
    if not name and not ranks and len(trace.groups) == 1:
        name = trace.groups[0].name
    members = read_member_list(ranks)
    if not members:
        listed = {one.ranks for one in trace.groups if one.name == name and one.ranks}
        members = tuple(sorted(listed.pop())) if len(listed) == 1 else ()
    return name, members


def _measure_dims(dims: str, types: str, known: str) -> tuple[int, str]:
    """Return the bytes of the tensors of an op, and their type, from shapes and types."""
    try:
        shapes, kinds = json.loads(dims), json.loads(types)
        sizes = [
            (prod(int(one) for one in shape) * count_dtype_bytes(kind), kind)
            for shape, kind in zip(shapes, kinds, strict=True)
            if shape and isinstance(kind, str) and count_dtype_bytes(kind) > 0
        ]
    except (ValueError, TypeError, RecursionError):
        return UNKNOWN, known
    total = sum(size for size, _ in sizes)
    if not sizes or not 0 <= total <= _MAX_BYTES:
        return UNKNOWN, known
    return total, sizes[0][1]
