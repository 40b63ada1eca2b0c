"""Feeds all readers of small records with what a coverage-guided fuzzer makes up.

These are the artifacts of an evidence folder, stacks, executed lines, inspection, partials and
caches of traces, messages to the agent, and the choice of a run. Dumps, op logs, logs and traces
have targets of their own.

Only the errors that each reader names may come out. Needs `pip install --group fuzz`; options are
those of libFuzzer, as for `fuzz_fr.py`. The first byte of an input chooses the reader.
"""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fuzzing import fuzz, instrumented

with instrumented(
    "whystuck.parse",
    "whystuck.agent",
    "whystuck.read.runs",
    "whystuck.collect",
    "whystuck.evidence",
):
    import msgspec

    from whystuck.agent.fabric.messages import MessageError, parse_message
    from whystuck.agent.metrics.gpu.dcgm import parse_exposition
    from whystuck.agent.ondemand.config_text import read_raw_config
    from whystuck.agent.processes.step_counter import StepCounter
    from whystuck.agent.rpc.frames import FrameError, parse_length, parse_object
    from whystuck.collect.beats import LAYOUT, MAGIC, parse_beat
    from whystuck.collect.node.mounts import parse_mount
    from whystuck.collect.node.npu_smi import parse_npu_info, parse_npu_values
    from whystuck.collect.peers import find_waits
    from whystuck.evidence.archive import list_members
    from whystuck.evidence.errors import UsageError
    from whystuck.evidence.records import SwitchRecord
    from whystuck.parse import node_records, records
    from whystuck.parse.boot_check import is_boot_check, parse_boot_check
    from whystuck.parse.errors import ParseError
    from whystuck.parse.logs.signatures import load_signatures, parse_signatures
    from whystuck.parse.ops.inspection import parse_inspection
    from whystuck.parse.ops.nccl_inspector import parse_nccl_inspector
    from whystuck.parse.ras import is_whole_answer, parse_ras, parse_ras_lines
    from whystuck.parse.stacks import python_stacks
    from whystuck.parse.stacks.executed_lines import parse_executed
    from whystuck.parse.stacks.gpu_kernels import parse_gpu_kernels
    from whystuck.parse.stacks.profiler_stacks import parse_profiler_stacks
    from whystuck.parse.traces.memory_timeline import parse_memory_timeline
    from whystuck.read.runs import select_evidence
    from whystuck.read.sniffing import sniff
    from whystuck.read.traces.cache import _read as read_cached
    from whystuck.read.traces.partials import decode_partial, encode_partial, unpack_tables

from tests.parse.ops.nccl_logs import make_log, make_op, make_transfer
from tests.parse.ras_answers import make_json, make_late_text

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Detail
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankHeader, RankTables

DEFAULTS = ("-max_len=8000", "-rss_limit_mb=4000", "-malloc_limit_mb=500", "-timeout=20")
HOME = Path(tempfile.mkdtemp(prefix="whystuck-fuzz-"))
COUNTER = os.memfd_create("steps")
SIGNATURES = load_signatures()
OURS: dict[str, Any] = {"rank": 0, "artifact": "a"}


def read_text(data: bytes) -> str:
    """Decode as the readers of files do."""
    return data.decode("utf-8", errors="replace")


def choose_run(data: bytes) -> object:
    """Choose from an evidence folder whose records are made up."""
    incident = HOME / "incidents" / "000"
    home = HOME / "rounds" / "0"
    for folder in (incident, home):
        folder.mkdir(parents=True, exist_ok=True)
    first, _, second = data.partition(b"\n")
    (incident / "incident.json").write_bytes(first)
    (home / "job.json").write_bytes(second)
    return select_evidence(HOME)


def take_partial(data: bytes) -> object:
    """Read a partial whose digest is right."""
    from whystuck.read.traces.partials import MAGIC, VERSION, _digest

    return unpack_tables(decode_partial(MAGIC + bytes([VERSION]) + _digest(data) + data))


def read_steps(data: bytes) -> object:
    """Read a counter of steps."""
    os.ftruncate(COUNTER, 0)
    os.pwrite(COUNTER, data, 0)
    return StepCounter(COUNTER).read()


def read_cache(data: bytes) -> object:
    """Read what lies where a trace is kept as Parquet."""
    place = HOME / "cache.parquet"
    place.write_bytes(data)
    return read_cached(place, "a", "f", Detail.LEAN, 1_000)


READERS: tuple[Callable[[bytes], object], ...] = (
    records.parse_incident,
    records.parse_job,
    records.parse_gaps,
    records.parse_source_index,
    lambda data: records.parse_processes(data, worker=False, **OURS),
    lambda data: records.parse_beat(data, **OURS),
    lambda data: records.parse_peers(data, **OURS),
    lambda data: records.parse_skipped(data, **OURS),
    lambda data: records.parse_exception(data, **OURS),
    lambda data: records.parse_thread_errors(data, **OURS),
    lambda data: records.parse_leaving(data, **OURS),
    lambda data: records.parse_exit(data, **OURS),
    lambda data: node_records.parse_memory(data, **OURS),
    lambda data: node_records.parse_cpu(data, **OURS),
    lambda data: node_records.parse_garbage(data, **OURS),
    lambda data: node_records.parse_host(data, artifact="a"),
    lambda data: node_records.parse_claims(data, artifact="a"),
    lambda data: parse_inspection(data, **OURS),
    lambda data: parse_executed(data, **OURS),
    lambda data: parse_profiler_stacks(data, **OURS),
    parse_memory_timeline,
    lambda data: python_stacks.parse_spy_json(data, **OURS),
    lambda data: python_stacks.parse_spy_text(read_text(data), **OURS),
    lambda data: python_stacks.parse_faulthandler(read_text(data), **OURS),
    lambda data: python_stacks.parse_fatal(read_text(data), **OURS),
    lambda data: msgspec.json.decode(data, type=SwitchRecord),
    lambda data: parse_signatures(data, base=SIGNATURES, toml=False),
    lambda data: sniff("rank_0.json", data),
    take_partial,
    choose_run,
    parse_message,
    lambda data: read_raw_config(read_text(data)),
    lambda data: (parse_object(data[8:]), parse_length(data[:4], 1 << 20)),
    read_steps,
    read_cache,
    parse_ras,
    lambda data: node_records.parse_devices(data, artifact="a"),
    lambda data: parse_gpu_kernels(read_text(data), rank=0),
    lambda data: list_members(io.BytesIO(data), len(data), "n0"),
    parse_beat,
    lambda data: parse_mount(read_text(data)),
    find_waits,
    lambda data: list(parse_exposition(data, frozenset({"up"}))),
    lambda data: (parse_npu_info(read_text(data)), parse_npu_values(read_text(data))),
    parse_nccl_inspector,
    lambda data: (is_whole_answer(data), parse_ras_lines(read_text(data).split("\n"))),
    lambda data: node_records.parse_checks(data, artifact="a"),
    lambda data: (is_boot_check(data), parse_boot_check(data, artifact="a")),
)


ERRORS = (
    ParseError,
    UsageError,
    MessageError,
    FrameError,
    msgspec.MsgspecError,
    UnicodeDecodeError,
)


def test_one_input(data: bytes) -> None:
    """Give an input to the reader that its first byte names."""
    if not data:
        return
    try:
        READERS[data[0] % len(READERS)](data[1:])
    except ERRORS:
        return
    except RecursionError:
        if data[0] % len(READERS) != SWITCH:
            raise


SWITCH = 22


def make_archive() -> bytes:
    """Return an archive of a node with one file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        info = tarfile.TarInfo("n0/rank-0/rank.log")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    return out.getvalue()[:2048]


def write_seeds(folder: Path) -> None:
    """Write something sound for each reader to start from."""
    frames = [{"name": "f", "filename": "a.py", "line": 3}]
    group = {"kind": "send", "peer": 1, "group": "0", "frames": frames}
    call = {"op": "x", "count": 1, "site": frames}
    fault = 'Thread 0x00007f01 (most recent call first):\n  File "a.py", line 3 in f\n'
    spy = 'Process 7: python\nPython v3.11\n\nThread 7 (idle): "MainThread"\n    f (a.py:3)\n'
    lines = [
        {"kind": "start", "spec": "finite", "generation": 1},
        {"kind": "amp", "step": 3, "scale": 2.0, "skipped": True},
        {"kind": "full", "limit_bytes": 5},
    ]
    trace = {
        "ph": "X",
        "cat": "python_function",
        "name": "a.py(3): f",
        "pid": 0,
        "tid": 0,
        "ts": 1.0,
    }
    header = struct.pack("<8sIIIIQQQQqqdd", b"WSLIN001", 256, 4, 1, 1, 64, 20, 0, 0, 0, 1, 1.0, 1.0)
    executed = header.ljust(256, b"\0") + bytes(64) + struct.pack("<QQQ40s", 1, 1, 1, b"t")
    partial = encode_partial(RankTables(RankHeader(), {"t": Table({})}), TraceOptions(), "m")
    sound: dict[int, object] = {
        0: {"kind": "stall", "opened_ns": 5, "world_size": 2, "job": {"command": ["x"]}},
        1: {"command": ["x"], "started_ns": 5},
        2: [{"rank": 1, "what": "x", "reason": "y"}],
        3: {"files": {"/a.py": "0.py"}},
        4: {"samples": [{"taken_ns": 1, "pid": 2, "connections": [{"local": "a"}]}]},
        5: {"pid": 1, "groups": {"0": [0, 1]}},
        6: {"pid": 1, "waits": [group], "counts": [{"kind": "send", "peer": 1}]},
        7: {"pid": 1, "failures": [{"group": "0", "members": [0], "calls": [call]}]},
        8: {"type": "ValueError", "message": "Original Traceback", "frames": frames},
        9: {"call": "sys.exit", "status": "1", "frames": frames},
        10: {"pid": 1, "code": 1},
        11: {"pid": 1, "points": [[1, 2, 3, 4, 5]], "cgroup": None},
        12: {"node": "n", "start": {"time_ns": 1, "groups": [], "volumes": []}},
        13: {"node": "n", "claims": [{"rank": 0, "environment": {"A": "B"}}]},
        14: "\n".join(map(json.dumps, lines)).encode(),
        15: executed + struct.pack("<QII", 4, 1, 3) * 4,
        16: {"traceEvents": [trace], "pythonFiles": {"a.py": "/a.py"}},
        17: [[1, 0, 512, 3]],
        18: [{"pid": 1, "thread_id": 1, "thread_name": "MainThread", "frames": frames}],
        19: spy.encode(),
        20: fault.encode(),
        21: b"Fatal Python error: Segmentation fault\n\n" + fault.encode(),
        22: {"rank": 0, "comm": "on"},
        23: b"id,meaning,action,pattern\nx.y,m,a,some text (?P<n>\\d+)\n",
        24: {"traceEvents": []},
        25: partial[21:],
        26: b'{"kind":"exit","round":0}\n{"command":["x"],"started_ns":5}',
        27: struct.pack("<Q32s", 0, b"req") + bytes(24),
        28: b"ACTIVITIES_LOG_FILE=/tmp/x.json\nACTIVITIES_DURATION_MSECS=5",
        29: b"\x05\0\0\0\0\0\0\0" + b'{"fn":"x"}',
        30: struct.pack("<18Q", 1, 20, *range(1, 17)),
        32: make_late_text(),
        33: {"node": "n", "devices": [{"index": "0", "looks": [{"power": 5.0, "is_lost": True}]}]},
        34: b"*   0   -  1  37 Active 0x00f (1,1,1) (32,1,1) ncclKernel<int>(args=0x5)",
        35: make_archive(),
        36: LAYOUT.pack(MAGIC, 7, 1, 1, 3, 4, 17, 0, 0, 0, 0, 7),
        37: b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
        38: b'[{"os_thread_id":1,"pid":1,"frames":[{"name":"recv","filename":'
        b'"/torch/distributed/distributed_c10d.py","line":1,"locals":[{"name":"src","repr":"1"}]}]}]',
        39: b'# TYPE up gauge\nup{a="b"} 1 1700000000000\n',
        40: b"| NPU   Name | Health |\n| 0     910B | OK |\n\tHBM Usage Rate(%)  : 5\n",
        41: make_log(make_op(), make_transfer(), version="v4.3") + make_log(make_op()),
        44: {
            "node": "n",
            "results": [{"name": "shm", "problems": [{"code": "N403", "nodes": ["n"]}]}],
        },
        45: b"2024-05-01 10:00:00 Start to run Bootchecking...\n"
        b"2024-05-01 10:00:01 DiskTest /a: OK\n"
        b"2024-05-01 10:00:02 /a RW TEST: 5.9 GB/s 663 MB/s\n2024-05-01 10:00:02 GPU Number: 1\n",
        32 + len(READERS): make_json([41, 40]),  # the same reader
    }
    for number, value in sound.items():
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        (folder / f"seed-{number}").write_bytes(bytes([number]) + data)


if __name__ == "__main__":
    fuzz(test_one_input, write_seeds, DEFAULTS)
