"""Hostile traces, op logs and files of executed lines; see `hostile_cases.py`."""

from __future__ import annotations

import gzip
import json
import os
import struct
from pathlib import Path

import numpy as np
from bench.hostile_cases import ANALYZE, DIAGNOSE, MB, MERGE, case, write_packed
from tests.parse.ops.op_logs import SITE, Ring

EVENT = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d,"dur":1},'
HEAD = b'{"distributedInfo":{"rank":%d},"traceEvents":['
WAYS = (DIAGNOSE, ANALYZE, MERGE)


@case(*WAYS)
def packed_traces(folder: Path, large: bool) -> None:
    times = 4000 if large else 100
    name = HEAD % 0 + b'{"ph":"X","name":"'
    write_packed(folder / "rank0.pt.trace.json.gz", name, b"x" * MB, times)
    write_packed(folder / "rank1.pt.trace.json.gz", HEAD % 1, EVENT % 1 * (MB // 80), times)
    write_packed(folder / "rank2.pt.trace.json.gz", HEAD % 2, b" " * MB, times)
    write_packed(folder / "rank3.pt.trace.json.gz", b'{"x":[', b"1," * (MB // 2), times)


@case(*WAYS)
def traces_in_zstd(folder: Path, large: bool) -> None:
    times = 8000 if large else 100
    write_packed(folder / "rank0.json.zst", HEAD % 0 + b'{"a":"', b"x" * MB, times)
    write_packed(folder / "rank1.json.zst", HEAD % 1 + b'{"a":', b"[" * MB, times)


@case(*WAYS)
def large_trace(folder: Path, large: bool) -> None:
    piece = b"".join(EVENT % n for n in range(13_000))
    with (folder / "rank0.pt.trace.json").open("wb") as file:
        file.write(HEAD % 0)
        # Time and memory grow with the events of a trace that is as large as it looks.
        for _ in range(100 if large else 20):
            file.write(piece)
        file.write(b"{}]}")


@case(*WAYS)
def one_time(folder: Path, large: bool) -> None:
    count = 1_000_000 if large else 50_000
    kinds = [
        EVENT,
        b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":1,"args":{"stream":7,"correlation":5}},',
        b'{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":%d,"dur":1,"args":{"correlation":5}},',
    ]
    with gzip.open(folder / "rank0.pt.trace.json.gz", "wb", 1) as file:
        file.write(HEAD % 0)
        file.write(b"".join(kind % 5 for kind in kinds) * (count // 3))
        file.write(b"{}]}")


@case(*WAYS)
def many_names(folder: Path, large: bool) -> None:
    count = 1_000_000 if large else 50_000
    with (folder / "rank0.pt.trace.json").open("wb") as file:
        file.write(HEAD % 0)
        for n in range(count):
            file.write(
                b'{"ph":"X","cat":"c%d","name":"n%d","pid":%d,"tid":%d,"ts":%d,"dur":%d,"args":{"a%d":%d}},'
                % (n % 5000, n, n, n, n, n, n % 50_000, n)
            )
        file.write(b"{}]}")


@case(*WAYS)
def huge_names(folder: Path, large: bool) -> None:
    with (folder / "rank0.pt.trace.json").open("wb") as file:
        file.write(HEAD % 0)
        for n in range(300 if large else 20):
            file.write(
                b'{"ph":"X","cat":"cpu_op","name":"%d%b","pid":1,"tid":1,"ts":%d,"dur":1},'
                % (n, b"\\u0041" * 150_000, n)
            )
        file.write(b"{}]}")


@case(*WAYS)
def nested_events(folder: Path, large: bool) -> None:
    count = 500_000 if large else 20_000
    with (folder / "rank0.pt.trace.json").open("wb") as file:
        file.write(HEAD % 0)
        for n in range(count):
            file.write(
                b'{"ph":"X","cat":"python_function","name":"f","pid":1,"tid":1,"ts":%d,"dur":%d,'
                b'"args":{"Python id":%d,"Python parent id":%d}},' % (n, 2 * (count - n), n, n - 1)
            )
        file.write(b"{}]}")


@case(*WAYS)
def wild_numbers(folder: Path, _large: bool) -> None:
    values = [
        "1e308",
        "-1e308",
        "NaN",
        "9" * 400,
        "-9223372036854775808",
        '"x"',
        "null",
        "[]",
        "1e-400",
        "0.1" + "1" * 5000,
    ]
    events = [
        f'{{"ph":"{ph}","cat":"{cat}","name":"n","pid":{a},"tid":{b},"ts":{c},"dur":{a},"id":{b},"args":{{"correlation":{a},"stream":{b},"Rank":{c}}}}}'
        for ph in "XBEMsfiC"
        for cat in ("cpu_op", "kernel", "gpu_memcpy")
        for a in values
        for b in values[:4]
        for c in values
    ]
    for rank, head in enumerate(
        (
            '{"traceEvents":[',
            '{"distributedInfo":{"rank":1e300,"world_size":-1},"baseTimeNanoseconds":1e999,"traceEvents":[',
        )
    ):
        (folder / f"rank{rank}.pt.trace.json").write_text(head + ",".join(events) + "]}")


@case(*WAYS)
def deep_traces(folder: Path, large: bool) -> None:
    depth = 1_000_000 if large else 100_000
    (folder / "rank0.pt.trace.json").write_bytes(HEAD % 0 + b'{"args":' * depth)
    (folder / "rank1.pt.trace.json").write_bytes(
        HEAD % 1 + b'{"ph":"X","args":' + b"[" * depth + b"]" * depth + b"}]}"
    )
    (folder / "rank2.pt.trace.json").write_bytes(b'{"a":' * depth + b'{"traceEvents":[')
    (folder / "rank3.pt.trace.json").write_bytes(b'{"traceEvents":[' * depth)


@case(*WAYS)
def events_in_texts(folder: Path, large: bool) -> None:
    text = rb"\"traceEvents\":[" * (3_000_000 if large else 100_000)
    (folder / "rank0.pt.trace.json").write_bytes(b'{"schemaVersion":1,"a":"' + text + b'"}')
    (folder / "rank1.pt.trace.json").write_bytes(b'{"a":"x"traceEvents":[' * 200_000 + b"}")


@case(*WAYS)
def traces_in_one_file(folder: Path, large: bool) -> None:
    one = HEAD % 0 + EVENT % 5 + b"{}]}\n"
    (folder / "rank0.pt.trace.json").write_bytes(one * (200_000 if large else 5_000))


@case(ANALYZE, MERGE, DIAGNOSE)
def many_traces(folder: Path, large: bool) -> None:
    for rank in range(5_000 if large else 50):
        (folder / f"rank{rank}.pt.trace.json").write_bytes(HEAD % rank + EVENT % 5 + b"{}]}")


@case(ANALYZE, MERGE)
def groups_of_traces(folder: Path, large: bool) -> None:
    groups = [
        {"pg_name": str(n), "pg_desc": "x" * 100, "pg_size": 1 << 40, "ranks": list(range(2000))}
        for n in range(1000 if large else 50)
    ]
    head = {
        "distributedInfo": {"rank": 0, "world_size": 1 << 60, "pg_config": groups},
        "traceEvents": [],
    }
    (folder / "rank0.pt.trace.json").write_text(json.dumps(head))


@case(ANALYZE, MERGE)
def flows(folder: Path, large: bool) -> None:
    with (folder / "rank0.pt.trace.json").open("wb") as file:
        file.write(HEAD % 0)
        for n in range(300_000 if large else 20_000):
            file.write(
                b'{"ph":"%b","id":5,"cat":"ac2g","name":"ac2g","pid":1,"tid":1,"ts":%d,"bp":"e"},'
                % (b"sf"[n % 2 : n % 2 + 1], n)
            )
            file.write(EVENT % n)
        file.write(b"{}]}")


@case(ANALYZE)
def partials(folder: Path, large: bool) -> None:
    for number, data in enumerate(
        (
            b"",
            os.urandom(1000),
            b"\xdf\xff\xff\xff\xff" * 10,
            gzip.compress(bytes(300 * MB if large else MB)),
        )
    ):
        (folder / f"{number}.whystuck-partial").write_bytes(data)
        (folder / f"{number}.partial").write_bytes(data)
    (folder / "rank0.pt.trace.json").write_bytes(HEAD % 0 + EVENT % 5 + b"{}]}")


# ------------------------------------------------------------------------------ op logs, lines


@case()
def op_logs(folder: Path, large: bool) -> None:
    ring = Ring(capacity=64, values_bytes=1 << 16)
    ring.group()
    for index in range(30):
        ring.op(line=index)
    ring.value(SITE, b"[")
    good = ring.data()
    most = (1 << 64) - 1
    for rank, at in enumerate(range(8, 128, 8)):
        for part, value in enumerate((0, 1, 1 << 31, 1 << 62, most)):
            data = bytearray(good)
            struct.pack_into("<Q", data, at, value)
            (folder / f"rank_{rank * 10 + part}.ring").write_bytes(data)
    zeros = bytearray(good[:4096]) + bytes((400 if large else 8) * MB)
    struct.pack_into("<Q", zeros, 16, 1 << 40)
    (folder / "rank_900.ring").write_bytes(zeros)


@case()
def many_ops(folder: Path, large: bool) -> None:
    ring = Ring(capacity=100_000 if large else 2_000, values_bytes=1 << 22)
    ring.group()
    for index in range(100_000 if large else 2_000):
        ring.op(line=index % 5000, takes_ns=None)
    data = ring.data()
    for rank in range(40 if large else 4):
        (folder / f"rank_{rank}.ring").write_bytes(data)


@case()
def values_of_op_logs(folder: Path, large: bool) -> None:
    ring = Ring(capacity=64, values_bytes=1 << 24)
    for number in range(50_000 if large else 1_000):
        ring.group(f"g{number}", list(range(20)))
    ring.group("big", list(range(200_000)))
    ring.value(SITE, b"[" * 100_000)
    ring.op()
    for rank in range(8 if large else 2):
        (folder / f"rank_{rank}.ring").write_bytes(ring.data())


@case()
def executed_lines(folder: Path, large: bool) -> None:
    header = struct.Struct("<8sIIIIQQQQqqdd")
    most = (1 << 32) - 1
    size = 20_000_000 if large else 500_000
    for rank, fields in enumerate(
        (
            (4096, 1_000_000, 1, 1, 0, 0),
            (4096, 1_000_000, 12 if large else 1, 1, 0, 0),
            (most, most, most, 9, 1 << 63, 1 << 63),
            (0, 1, 1024, 0, 0, 0),
            (96, 10, 0, 1, size, size),
        )
    ):
        home = folder / "incidents" / "000" / "n0" / f"rank-{rank}"
        home.mkdir(parents=True)
        head = header.pack(
            b"WSLIN001", *fields[:4], *fields[4:6], fields[5], 0, 1, 1, float("nan"), -1.0
        )
        entries = b"".join(
            struct.pack("<QII", n + 1_000_000, n, n) for n in range(min(size // 16, 1_000_000))
        )
        data = head.ljust(4096, b"\0") + struct.pack("<QQQ40s", 1, 1, 1, b"x" * 40) + entries
        (home / "executed.lines.gz").write_bytes(gzip.compress(data.ljust(size, b"\0"), 1))
    # As many threads and lines as the probe keeps at most.
    head = header.pack(b"WSLIN001", 4096, 10_000, 64, 1, 0, 0, 0, 0, 1, 1, 1.0, 1.0)
    for rank in range(5, 12 if large else 7):
        rings = b""
        for thread in range(64 if large else 4):
            lines = np.zeros(10_000, [("count", "<u8"), ("function", "<u4"), ("line", "<u4")])
            lines["count"] = np.arange(1_000_000, 1_010_000)
            lines["line"] = np.arange(10_000) * 7919 % (1, 3, 97, 10_000)[thread % 4]
            rings += struct.pack("<QQQ40s", 1, 1, 1, b"x" * 40) + lines.tobytes()
        home = folder / "incidents" / "000" / "n0" / f"rank-{rank}"
        home.mkdir(parents=True)
        data = (head.ljust(4096, b"\0") + rings).ljust(4096 + 64 * 160_064, b"\0")
        (home / "executed.lines.gz").write_bytes(gzip.compress(data, 1))
    (folder / "incidents" / "000" / "incident.json").write_text('{"kind":"stall","world_size":12}')
