"""Columns that a worker leaves in shared memory come out as they were."""

from __future__ import annotations

import os
from dataclasses import fields

import numpy as np
import pytest

from whystuck.parse.dumps.fast.columns import Columns
from whystuck.read.shared_columns import SharedColumns

LEAST, MOST = -(2**63), 2**63 - 1
RANGES = [(0, 1), (0, 255), (0, 256), (0, 65536), (-1, 200), (-5, 2**31), (0, MOST), (LEAST, MOST)]


def make_columns(values: tuple[int, ...]) -> Columns:
    numbers = np.array(values, dtype=np.int64)
    marks = numbers > 0
    columns = Columns(*(numbers,) * 8, *(marks,) * 3, *(numbers,) * 3)
    columns.record = columns.pg_id = columns.p2p_seq = numbers[:0]
    return columns


@pytest.mark.parametrize("values", RANGES)
def test_columns_come_out_as_they_were(values: tuple[int, ...]) -> None:
    shelf = SharedColumns(100_000)
    columns = make_columns(values)

    places = shelf.put(columns)

    assert places is not None
    fetched = shelf.get(places)
    for column in fields(Columns):
        one, two = getattr(fetched, column.name), getattr(columns, column.name)
        np.testing.assert_array_equal(one, two)
        assert one.dtype.kind in ("i", "u", "b")


def test_without_room_nothing_is_left() -> None:
    columns = make_columns(tuple(range(1000)))

    assert SharedColumns(0).put(columns) is None
    assert SharedColumns(1000).put(columns) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_what_a_forked_process_leaves_is_seen() -> None:
    shelf = SharedColumns(4096)
    columns = make_columns((3, 1, 2))
    places = SharedColumns(4096).put(columns)
    pid = os.fork()
    if pid == 0:
        shelf.put(columns)
        os._exit(0)
    os.waitpid(pid, 0)

    assert places is not None
    assert shelf.get(places).seq.tolist() == [3, 1, 2]
