"""Copying the op logs of ranks: as one state, within bounds, and what is told of the rest."""

from __future__ import annotations

import gzip
import os
import struct
import threading
from pathlib import Path

import msgspec
import pytest

from whystuck.collect.op_logs import OpLogError, OpLogKeeper, read_op_log
from whystuck.collect.processes.target import Target
from whystuck.collect.scene import Scene
from whystuck.evidence.finding import Gap


def make_op_log(path: Path, ring: bytes = b"ring", values: bytes = b"", offset: int = 0) -> bytes:
    """Write an op log as a rank has it: header, values, ring."""
    begin = offset or 128 + len(values)
    data = b"WSOPS001".ljust(40, b"\0") + struct.pack("<Q", begin)
    data = data.ljust(128, b"\0") + values + ring
    path.write_bytes(data)
    return data


def test_copy_is_the_file_packed(tmp_path: Path) -> None:
    data = make_op_log(tmp_path / "ops-1")
    target = tmp_path / "rank-0" / "ops.ring.gz"
    assert OpLogKeeper().copy(tmp_path / "ops-1", target)
    assert gzip.decompress(target.read_bytes()) == data
    assert [path.name for path in target.parent.iterdir()] == ["ops.ring.gz"]


def test_copy_when_there_is_none_then_says_so(tmp_path: Path) -> None:
    assert not OpLogKeeper().copy(tmp_path / "ops-1", tmp_path / "ops.ring.gz")
    assert not (tmp_path / "ops.ring.gz").exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not begin as one"),
        (b"WSOPS001", "does not begin as one"),
        (b"WSOPS002" + bytes(4096), "another version"),
        (b"WSOPS001".ljust(40, b"\0") + struct.pack("<Q", 2**64 - 1), "is cut off"),
    ],
)
def test_copy_when_it_is_no_op_log_then_tells(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "ops-1").write_bytes(data)
    with pytest.raises(OpLogError, match=reason):
        OpLogKeeper().copy(tmp_path / "ops-1", tmp_path / "ops.ring.gz")


def test_copy_of_a_log_that_is_written_has_the_values_of_its_records(tmp_path: Path) -> None:
    """A rank adds a value, and then a record that names it: never a record without its value."""
    path, over = tmp_path / "ops-1", threading.Event()
    make_op_log(path, ring=bytes(8), values=bytes(8))

    def write() -> None:
        number = 0
        with path.open("r+b", buffering=0) as file:
            while not over.is_set():
                number += 1
                os.pwrite(file.fileno(), struct.pack("<Q", number), 128)
                os.pwrite(file.fileno(), struct.pack("<Q", number), 136)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2000):
            data = read_op_log(path)
            value, record = struct.unpack_from("<QQ", data, 128)
            assert record <= value
    finally:
        over.set()
        writer.join()


def test_copies_have_a_bound_of_ranks(tmp_path: Path) -> None:
    make_op_log(tmp_path / "ops-1")
    keeper = OpLogKeeper(max_ranks=2)
    for rank in (0, 1, 1, 0):
        keeper.copy(tmp_path / "ops-1", tmp_path / f"rank-{rank}" / "ops.ring.gz")
    with pytest.raises(OpLogError, match="those of 2 ranks are kept"):
        keeper.copy(tmp_path / "ops-1", tmp_path / "rank-2" / "ops.ring.gz")


def test_copies_have_a_bound_of_bytes(tmp_path: Path) -> None:
    make_op_log(tmp_path / "ops-1", ring=os.urandom(700_000))
    keeper = OpLogKeeper(max_bytes=1 << 20)
    for _ in range(3):  # an older copy does not count
        keeper.copy(tmp_path / "ops-1", tmp_path / "rank-0" / "ops.ring.gz")
    with pytest.raises(OpLogError, match="more than 1 MiB in all"):
        keeper.copy(tmp_path / "ops-1", tmp_path / "rank-1" / "ops.ring.gz")
    assert not (tmp_path / "rank-1").exists()


def test_scene_tells_what_was_left_out(tmp_path: Path) -> None:
    make_op_log(tmp_path / "ops-11")
    (tmp_path / "ops-12").write_bytes(b"broken")
    incident = tmp_path / "incident"
    incident.mkdir()
    scene = Scene(incident, [Target(1, 12, "n0", tmp_path)])
    scene.recorded = [Target(0, 11, "n0", tmp_path), Target(2, 13, "n0", tmp_path)]
    scene.copy_records()
    scene.copy_records()
    assert sorted(path.parent.name for path in incident.rglob("ops.ring.gz")) == ["rank-0"]
    gaps = msgspec.json.decode((incident / "gaps.json").read_bytes(), type=list[Gap])
    assert [(gap.rank, gap.what, gap.reason) for gap in gaps] == [
        (1, "op log", "it does not begin as one")
    ]
