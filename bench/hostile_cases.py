"""Hostile evidence: files and folders that ask for much, lie, or lead elsewhere. See `hostile.py`.

Each case writes into an empty folder; ``large`` is whether it may take some hundred MB there.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import socket
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fr_dumps import Layout, make_dump, write_dumps
from tests.parse.dumps.builders import as_json, as_pickle, make_entry
from tests.parse.dumps.test_safety import BOMBS
from tests.parse.ops.op_logs import Ring

from whystuck.evidence.archive import SUFFIX

DIAGNOSE = ("diagnose", "{}")
LOGS = ("logs", "{}")
FR = ("fr", "{}")
ANALYZE = ("trace", "analyze", "{}")
MERGE = ("trace", "merge", "{}", "-o", "{out}")

Build = Callable[[Path, bool], None]


@dataclass(frozen=True)
class Case:
    """A folder, and the command that reads it."""

    name: str
    build: Build
    command: tuple[str, ...]


CASES: list[Case] = []


def case(*commands: Sequence[str]) -> Callable[[Build], Build]:
    """Add a case for each of some commands; `whystuck diagnose` when none is given."""

    def add(build: Build) -> Build:
        name = build.__name__.replace("_", " ")
        for command in commands or (DIAGNOSE,):
            word = "" if command == DIAGNOSE else f" ({' '.join(command[:2])})".replace(" {}", "")
            CASES.append(Case(name + word, build, tuple(command)))
        return build

    return add


def write_packed(path: Path, head: bytes, piece: bytes, times: int) -> None:
    """Write a packed file of a head and many like pieces; some of them are packed once."""
    some = max(1, min(times, (32 << 20) // len(piece)))
    pack = _PACKERS[path.suffix]
    block = pack(piece * some)
    with path.open("wb") as file:
        file.write(pack(head))
        for _ in range(times // some):
            file.write(block)


def _pack_zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": _pack_zstd,
}
MB = 1 << 20
LINE = b"2026-04-02 05:44:10 [rank0]: step 12 loss 3.14\n"


def _some_log(folder: Path, rank: int = 0) -> None:
    """Beside what is hostile lies something sound, which must still be read."""
    (folder / f"rank_{rank}.log").write_bytes(
        LINE * 20 + b"[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    )


# ------------------------------------------------------------------------------------ packed


def _bombs(folder: Path, suffix: str, size_mb: int) -> None:
    _some_log(folder)
    zeros, letters = bytes(MB), b"x" * MB
    write_packed(folder / f"rank_1.log{suffix}", LINE, LINE * (MB // len(LINE)), size_mb)
    write_packed(folder / f"rank_2.log{suffix}", LINE, zeros, size_mb)
    head = b'{"version":"2.5","pg_config":{},"entries":[{"profiling_name":"'
    write_packed(folder / f"nccl_trace_rank_3{suffix}", head, letters, size_mb)
    write_packed(
        folder / f"stacks-0.json{suffix}", b'[{"frames":[],"thread_id":"', letters, size_mb
    )
    write_packed(folder / f"rank_4.ring{suffix}", b"WSOPS001", zeros, size_mb)


@case()
def gzip_bombs(folder: Path, large: bool) -> None:
    _bombs(folder, ".gz", 4000 if large else 100)


@case()
def bzip2_bombs(folder: Path, large: bool) -> None:
    _bombs(folder, ".bz2", 600 if large else 20)


@case()
def xz_bombs(folder: Path, large: bool) -> None:
    _bombs(folder, ".xz", 1000 if large else 40)


@case()
def zstd_bombs(folder: Path, large: bool) -> None:
    _bombs(folder, ".zst", 8000 if large else 200)


@case()
def records_that_are_bombs(folder: Path, large: bool) -> None:
    rank = folder / "n0" / "rank-0"
    rank.mkdir(parents=True)
    times = 2000 if large else 50
    for name in ("executed.lines.gz", "ops.ring.gz"):
        write_packed(rank / name, b"WSLIN001" if "exec" in name else b"WSOPS001", bytes(MB), times)
    _some_log(folder)


@case()
def archives_of_many_files(folder: Path, large: bool) -> None:
    """Archives of a node: so many members that listing them again for each would never end."""
    for node in range(2):
        out = bytearray()
        for rank in range(8_000 if large else 2_000):
            info = tarfile.TarInfo(f"n{node}/rank-{rank}/nccl_trace_rank_{rank}")
            out += info.tobuf(tarfile.USTAR_FORMAT)
        (folder / f"n{node}{SUFFIX}").write_bytes(out + bytes(1024))
    _some_log(folder)


@case()
def packed_in_packed(folder: Path, large: bool) -> None:
    data = bytes(50 * MB)
    for _ in range(3):
        data = gzip.compress(data)
    for rank in range(200 if large else 10):
        (folder / f"rank_{rank}.log.gz").write_bytes(data)


@case(DIAGNOSE, LOGS)
def packed_logs(folder: Path, large: bool) -> None:
    noise = b"".join(b"[rank%d]: step %d loss %d\n" % (n % 7, n, n * 7919) for n in range(200_000))
    data = gzip.compress(noise + LINE * 200, 1)
    for rank in range(200 if large else 4):
        (folder / f"rank_{rank}.log.gz").write_bytes(data)


@case()
def packed_logs_of_few_lines(folder: Path, large: bool) -> None:
    data = gzip.compress(LINE * ((100 if large else 20) * MB // len(LINE)))
    for rank in range(200 if large else 4):
        (folder / f"rank_{rank}.log.gz").write_bytes(data)


# -------------------------------------------------------------------------------------- logs


@case(DIAGNOSE, LOGS)
def known_lines(folder: Path, large: bool) -> None:
    with (folder / "job.log").open("wb") as file:
        for n in range(300_000 if large else 10_000):
            file.write(
                b"[rank%d]: RuntimeError: CUDA error: an illegal memory access was encountered %d\n"
                % (n % 100_000, n)
            )


@case(DIAGNOSE, LOGS)
def known_lines_of_hosts(folder: Path, large: bool) -> None:
    with (folder / "job.log").open("wb") as file:
        for n in range(300_000 if large else 10_000):
            file.write(
                b"node%d:%d:%d [%d] NCCL WARN Call to ibv_modify_qp failed with error %d\n"
                % (n, n, n + 1, n % 8, n)
            )


@case()
def many_processes(folder: Path, large: bool) -> None:
    with (folder / "job.log").open("wb") as file:
        for n in range(200_000 if large else 5_000):
            file.write(
                b"n%d:%d:%d [%d] NCCL INFO comm 0x%x rank %d nranks 1048576 cudaDev 0 busId %x "
                b"commId 0x1 - Init COMPLETE\n" % (n, n, n, n % 8, n, n, n)
            )
            file.write(b"n%d:%d:%d [0] NCCL WARN Call to connect failed %d\n" % (n, n, n, n))


@case()
def many_errors(folder: Path, large: bool) -> None:
    with (folder / "job.log").open("wb") as file:
        for n in range(500_000 if large else 20_000):
            word = "".join(chr(97 + (n >> shift) % 26) for shift in range(0, 20, 4))
            file.write(f"ERROR: {word} {word[::-1]} failed to {word}\n".encode())


@case()
def tracebacks(folder: Path, large: bool) -> None:
    with (folder / "job.log").open("wb") as file:
        for n in range(60_000 if large else 4_000):
            file.write(b"[rank%d]: Traceback (most recent call last):\n" % (n % 5000))
            file.write(b'[rank%d]:   File "a.py", line %d, in f\n' % (n % 5000, n) * 3)
            file.write(b"[rank%d]: ValueError: %d\n" % (n % 5000, n))


@case()
def open_tracebacks(folder: Path, large: bool) -> None:
    with (folder / "job.log").open("wb") as file:
        for n in range(30_000 if large else 3_000):
            file.write(b"[rank%d]: Traceback (most recent call last):\n" % n)
        for n in range(300_000 if large else 10_000):
            file.write(b'[rank%d]:   File "a.py", line 1, in f\n' % (n % 30_000))


@case()
def chained_tracebacks(folder: Path, large: bool) -> None:
    one = (
        b"Traceback (most recent call last):\n"
        b'  File "a.py", line 1, in f\n    '
        b"g()\n"
        b"ValueError: x\n\nDuring handling of the above exception, another exception occurred:\n\n"
    )
    (folder / "rank_0.log").write_bytes(one * (50_000 if large else 2_000))


@case()
def exit_tables(folder: Path, large: bool) -> None:
    with (folder / "job.log").open("wb") as file:
        for n in range(100_000 if large else 5_000):
            file.write(
                b"[%d]:\n  time      : 2026-04-02_05:44:10\n  host      : h%d\n  rank      : %d"
                b" (local_rank: %d)\n  exitcode  : -9 (pid: %d)\n" % (n, n, n, n % 8, n)
            )


@case()
def fatal_stacks(folder: Path, large: bool) -> None:
    with (folder / "job.log").open("wb") as file:
        for n in range(20_000 if large else 1_000):
            file.write(b"Fatal Python error: Segmentation fault\n\n")
            for thread in range(5):
                file.write(b"Thread 0x%016x (most recent call first):\n" % thread)
                file.write(b'  File "a.py", line %d in f\n' % n * 4 + b"\n")


@case(DIAGNOSE, LOGS)
def many_logs(folder: Path, large: bool) -> None:
    for n in range(20_000 if large else 500):
        (folder / f"worker-{n}.log").write_bytes(
            LINE * 20 + b"[rank%d]: RuntimeError: NCCL error in: x %d\n" % (n, n)
        )


@case()
def many_empty_files(folder: Path, large: bool) -> None:
    for n in range(100_000 if large else 3_000):
        (folder / f"rank_{n}.log").touch()


@case()
def one_long_line(folder: Path, large: bool) -> None:
    with (folder / "rank_0.log").open("wb") as file:
        file.write(b"[rank0]: ERROR: ")
        for _ in range(200 if large else 20):
            file.write(b"RuntimeError: x" * (MB // 15))


@case()
def catastrophic_lines(folder: Path, large: bool) -> None:
    times = 300 if large else 20
    hard = [
        b"[" * 60_000,
        b"a:" * 30_000,
        b" " * 60_000 + b"x",
        b"0" * 60_000,
        b"(" * 60_000,
        b"[rank0]: " * 7_000,
        b"Error: " * 9_000,
        b"'" * 60_001,
        b"\x1b[" * 30_000,
        b"2026-04-02 " * 5_500,
        b"failed to " * 6_000,
        b"1." * 30_000,
        b"/a" * 30_000,
        b'File "' * 10_000,
        b"exitcode  : " * 5_000,
        b"rank " * 12_000,
        b"0x" * 30_000,
        b"Caused by " * 6_000,
        b"NCCL WARN " * 6_000,
        b"\r" * 60_000,
        b"\t" * 60_000 + b"ERROR: ",
        b"Watchdog caught collective operation timeout: " * 1_200,
    ]
    (folder / "rank_0.log").write_bytes(b"\n".join(hard * times))


@case()
def utf16_logs(folder: Path, large: bool) -> None:
    text = (LINE * 1000).decode() + "RuntimeError: CUDA error: an illegal memory access\n"
    times = 200 if large else 5
    (folder / "rank_0.log").write_bytes((text * times).encode("utf-16"))
    (folder / "rank_1.log").write_bytes((text * times).encode("utf-16-be"))
    (folder / "rank_2.log").write_bytes(b"\xff\xfe" + b"\xd8" * 2_000_001)
    (folder / "rank_3.log").write_bytes(b"\xef\xbb\xbf" * 500_000)


@case()
def controls_in_logs(folder: Path, large: bool) -> None:
    wild = "".join(map(chr, (*range(32), *range(0x7F, 0xA0), 0x202E, 0x2066, 0xFEFF, 0xE0041)))
    line = f"[rank0]: RuntimeError: CUDA error: {wild} illegal memory access\n"
    (folder / "rank_0.log").write_text(line * (20_000 if large else 500))
    (folder / "rank_1.log").write_bytes(bytes(range(256)) * (40_000 if large else 500))


@case()
def sparse_log(folder: Path, large: bool) -> None:
    with (folder / "rank_0.log").open("wb") as file:
        file.write(LINE * 1000)
        file.truncate((1 << 40) if large else (1 << 28))
    _some_log(folder, 1)


@case()
def sparse_files(folder: Path, large: bool) -> None:
    for name in (
        "nccl_trace_rank_0",
        "rank_1.json",
        "stacks-0.json",
        "rank_2.ring",
        "rank_3.pt.trace.json",
    ):
        with (folder / name).open("wb") as file:
            file.write(b'{"traceEvents":[' if "trace.json" in name else b"\x80\x04}")
            file.truncate((1 << 40) if large else (1 << 27))
    _some_log(folder, 4)


@case()
def stamps(folder: Path, large: bool) -> None:
    with (folder / "rank_0.log").open("wb") as file:
        for n in range(100_000 if large else 5_000):
            file.write(
                b"%d-13-99 99:99:99,%d [rank%d]: RuntimeError: CUDA error: illegal memory access\n"
                % (n, n << 70, n << 40)
            )


# ------------------------------------------------------------------------------------- dumps


@case(DIAGNOSE, FR)
def large_dumps(folder: Path, large: bool) -> None:
    dump = make_dump(Layout(32, steps=3), 0)
    entries = dump["entries"][:50]
    for entry in entries:
        entry["frames"] = [{"name": "n" * 1000, "filename": "f" * 1000, "line": 1}] * 20
    dump["entries"] = entries * (250 if large else 5)
    data = gzip.compress(as_json(dump) + b" " * ((200 if large else 5) * MB), 1)
    for rank in range(64 if large else 4):
        (folder / f"nccl_trace_rank_{rank}.json.gz").write_bytes(data)


@case(DIAGNOSE, FR)
def one_large_dump_among_sixty(folder: Path, large: bool) -> None:
    write_dumps(folder, Layout(64, steps=3))
    entries = [make_entry(seq=n) for n in range(1, 400_000 if large else 20_000)]
    name = next(iter(sorted(path.name for path in folder.iterdir())))
    (folder / name).write_bytes(as_pickle({"version": "2.5", "pg_config": {}, "entries": entries}))


@case()
def pickle_bombs(folder: Path, large: bool) -> None:
    for number, data in enumerate(BOMBS.values()):
        (folder / f"nccl_trace_rank_{number}").write_bytes(data)
    deep = b"\x80\x02" + b"]" * (5_000_000 if large else 100_000)
    (folder / "nccl_trace_rank_900").write_bytes(deep + b"." * 10)
    tuples = b"\x80\x02K\x01" + b"\x85" * (5_000_000 if large else 100_000) + b"."
    (folder / "nccl_trace_rank_901").write_bytes(tuples)
    memo = b"\x80\x02]" + b"".join(
        b"r" + struct.pack("<I", n * 65537 % (1 << 31)) for n in range(500_000)
    )
    (folder / "nccl_trace_rank_902").write_bytes(memo + b".")
    (folder / "nccl_trace_rank_903").write_bytes(
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f" + b"x" * 100
    )
    (folder / "nccl_trace_rank_904").write_bytes(
        b"\x80\x02\x8b" + struct.pack("<I", 30_000_000) + b"\x7f" * 30_000_000 + b"."
    )
    (folder / "nccl_trace_rank_905").write_bytes(b"cos\nsystem\n(S'true'\ntR.")


@case()
def many_values(folder: Path, large: bool) -> None:
    count = 20_000_000 if large else 300_000
    head = b'{"version":"2.5","pg_config":{},"entries":['
    (folder / "nccl_trace_rank_0.json").write_bytes(head + b"{}," * count + b"{}]}")
    (folder / "nccl_trace_rank_1.json").write_bytes(head + b"[]," * count + b"{}]}")
    (folder / "nccl_trace_rank_2").write_bytes(
        b"\x80\x02}(X\x07\x00\x00\x00version](" + b"}" * count + b"eu."
    )


@case()
def odd_dumps(folder: Path, _large: bool) -> None:
    changes: list[dict[str, Any]] = [
        {"state": 7},
        {"record_id": 1 << 80},
        {"collective_seq_id": -(1 << 63)},
        {"pg_id": 1e308},
        {"profiling_name": "\ud800"},
        {"frames": {}},
        {"input_sizes": [[1 << 70]]},
        {"time_created_ns": "x"},
        {"process_group": ()},
        {"p2p_seq_id": 10**400},
        {"timeout_ms": float("nan")},
        {"time_discovered_started_ns": float("inf")},
        {"op_id": True},
        {"retired": None},
    ]
    for rank, change in enumerate(changes):
        entries = [make_entry(seq=n, **change) for n in range(1, 200)]
        data = as_pickle({"version": "2.5", "pg_config": {}, "pg_status": {}, "entries": entries})
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    (folder / "nccl_trace_rank_90.json").write_text('{"version":"2.5","entries":[NaN,Infinity]}')
    (folder / "nccl_trace_rank_91.json").write_text(
        '{"version":"1","version":"2","entries":[],"entries":[{}]}'
    )


@case(DIAGNOSE, FR)
def many_groups(folder: Path, large: bool) -> None:
    count = 200_000 if large else 5_000
    groups = {str(n): {"name": f"g{n}", "desc": "", "ranks": "[0, 1]"} for n in range(count)}
    entries = [make_entry(seq=n, process_group=(f"g{n}", "")) for n in range(1, count)]
    for rank in range(2):
        dump = {"version": "2.5", "pg_config": groups, "pg_status": {}, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(dump))


@case()
def huge_ranks(folder: Path, large: bool) -> None:
    data = as_pickle(make_dump(Layout(32, steps=1), 0))
    for rank in (1 << 20, (1 << 20) - 1, 1 << 63, 10**40, 999_999):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    members = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(1_000_000)))}}
    entries = [make_entry(seq=n) for n in range(1, 100)]
    dump = {"version": "2.5", "pg_config": members, "pg_status": {}, "entries": entries}
    for rank in range(20 if large else 2):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(dump))


# ----------------------------------------------------------------------------- links and places


@case(DIAGNOSE, LOGS)
def links(folder: Path, _large: bool) -> None:
    targets = [
        "/proc/kmsg",
        "/dev/zero",
        "/dev/random",
        "/dev/tty",
        "/etc/shadow",
        "/proc/self/mem",
        "/sys/kernel/tracing/trace_pipe",
        "/proc/self/environ",
        "rank_0.log",
        "nowhere",
        "/dev/stdin",
    ]
    for rank, target in enumerate(targets):
        (folder / f"rank_{rank}.log").symlink_to(target)
        (folder / f"nccl_trace_rank_{rank}.json").symlink_to(target)
    (folder / "up").symlink_to(folder)
    (folder / "root").symlink_to("/")
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    _some_log(folder, 50)


@case(DIAGNOSE, LOGS, ANALYZE, MERGE)
def pipes_and_sockets(folder: Path, _large: bool) -> None:
    for name in (
        "rank_0.log",
        "nccl_trace_rank_1",
        "gaps.json",
        "rank_2.pt.trace.json",
        "incident.json",
        "job.json",
    ):
        os.mkfifo(folder / name)
    with socket.socket(socket.AF_UNIX) as one:
        here = Path.cwd()
        os.chdir(folder)
        one.bind("rank_3.log")
        os.chdir(here)
    os.mkfifo(folder / "rank_4.json")
    _some_log(folder, 5)
    (folder / "rank_6.pt.trace.json").write_text('{"traceEvents":[]}')


@case()
def links_for_records(folder: Path, _large: bool) -> None:
    rank = folder / "incidents" / "000" / "n0" / "rank-0"
    (rank / "sources").mkdir(parents=True)
    incident = folder / "incidents" / "000"
    (incident / "incident.json").write_text(
        '{"kind":"exit","round":0,"command_exit":1,"world_size":2}'
    )
    (rank / "log.txt").symlink_to("/etc/shadow")
    for name in ("beat.json", "exit.json", "proc.json"):
        (rank / name).symlink_to("/dev/zero")
    (rank / "sources" / "index.json").write_text(
        '{"files":{"/etc/passwd":"0.py","b":"../../x","c":"1.py"}}'
    )
    (rank / "sources" / "0.py").symlink_to("/etc/passwd")
    (folder / "rounds").mkdir()
    (folder / "rounds" / "0").symlink_to("/")


@case(DIAGNOSE, ANALYZE)
def deep_folders(folder: Path, large: bool) -> None:
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        for _ in range(2000 if large else 300):
            Path("d" * 20).mkdir()
            os.chdir("d" * 20)
        Path("rank_0.log").write_bytes(LINE)
    finally:
        os.fchdir(here)
        os.close(here)
    _some_log(folder, 1)


@case(DIAGNOSE, ANALYZE)
def many_folders(folder: Path, large: bool) -> None:
    for n in range(30_000 if large else 1_000):
        (folder / f"{n}" / "rounds" / "0").mkdir(parents=True)
    _some_log(folder)


@case(DIAGNOSE, LOGS)
def odd_names(folder: Path, _large: bool) -> None:
    for number, name in enumerate(
        (
            b"\xff\xfe",
            b"\x1b[2J\x1b]0;x\x07",
            b"a\nb",
            b"`<img src=x>`",
            "\u202e\u2066gol".encode(),
            b"-rf",
            b"%s%n",
            b"{0}",
            b" ",
            b"a" * 200,
        )
    ):
        path = os.fsencode(folder) + b"/rank_%d_" % number + name + b".log"
        Path(os.fsdecode(path)).write_bytes(b"Traceback (most recent call last):\nValueError: x\n")
        trace = os.fsencode(folder) + b"/nccl_trace_rank_%d_" % number + name
        Path(os.fsdecode(trace)).write_bytes(b"\x80\x02damaged")


@case()
def unreadable(folder: Path, _large: bool) -> None:
    for name in ("rank_0.log", "nccl_trace_rank_1", "incident.json"):
        (folder / name).write_bytes(LINE)
        (folder / name).chmod(0)
    (folder / "closed").mkdir(mode=0)
    _some_log(folder, 2)


def _texts(count: int) -> Iterator[str]:
    return (f"t{number}" for number in range(count))


# --------------------------------------------------------------------------- our own records


def _incident(folder: Path, world: int, record: str = "") -> Path:
    incident = folder / "incidents" / "000"
    incident.mkdir(parents=True)
    text = record or json.dumps({"kind": "stall", "world_size": world, "round": 0})
    (incident / "incident.json").write_text(text)
    return incident


RECORDS = (
    "proc.json",
    "beat.json",
    "peers.json",
    "skipped.json",
    "exception.json",
    "thread-errors.json",
    "leaving.json",
    "exit.json",
    "inspect.jsonl",
    "executed.lines.gz",
    "profiler-stacks.json",
    "gaps.json",
    "memory.json",
    "host.json",
    "claims.json",
    "switch.json",
    "fr.pickle",
    "fr.json",
    "ops.ring.gz",
    "stacks-0.json",
    "fatal.txt",
    "faulthandler.txt",
    "log.txt",
)


def _fill(folder: Path, data: bytes) -> None:
    rank = _incident(folder, 4) / "n0" / "rank-0"
    rank.mkdir(parents=True)
    for name in RECORDS:
        (rank / name).write_bytes(data)
        (rank.parent / name).write_bytes(data)


@case()
def op_logs_of_many_ranks(folder: Path, large: bool) -> None:
    """A sound one: full op logs, and one rank that does not come."""
    ranks, capacity = (1024, 4096) if large else (16, 512)
    node = _incident(folder, ranks) / "n0"
    for has_come in (True, False):
        ring = Ring(world=ranks, capacity=capacity, values_bytes=1 << 20)
        ring.group()
        for number in range(capacity - 1):
            ring.op(line=number % 7, step=number // 8)
        if has_come:
            ring.op(line=7, takes_ns=None)
        for rank in range(1, ranks) if has_come else (0,):
            (node / f"rank-{rank}").mkdir(parents=True)
            ring.rank = rank
            (node / f"rank-{rank}" / "ops.ring").write_bytes(ring.data())


@case()
def deep_records(folder: Path, large: bool) -> None:
    depth = 1_000_000 if large else 100_000
    _fill(folder, b'{"a":' * depth + b"1" + b"}" * depth)


@case()
def deep_lists(folder: Path, large: bool) -> None:
    _fill(folder, b"[" * (1_000_000 if large else 100_000))


@case()
def huge_numbers(folder: Path, large: bool) -> None:
    digits = b"9" * (1_000_000 if large else 50_000)
    keys = b"pid", b"world_size", b"time_ns", b"code", b"taken_ns", b"age_s", b"round", b"samples"
    _fill(folder, b"{" + b",".join(b'"%b":%b' % (key, digits) for key in keys) + b"}")


@case()
def nulls(folder: Path, _large: bool) -> None:
    _fill(folder, b"null")


@case()
def wrong_types(folder: Path, _large: bool) -> None:
    _fill(
        folder,
        b'{"samples":[{"taken_ns":"x","pid":[]}],"waits":{},"frames":[null],"files":[1],"type":{}}',
    )


@case()
def many_samples(folder: Path, large: bool) -> None:
    rank = _incident(folder, 2) / "n0" / "rank-0"
    rank.mkdir(parents=True)
    count = 1_000_000 if large else 30_000
    samples = b",".join(b'{"taken_ns":%d,"pid":7}' % n for n in range(count))
    (rank / "proc.json").write_bytes(b'{"samples":[%b]}' % samples)
    peers = b",".join(b'{"kind":"send","peer":%d,"group":"g%d"}' % (n, n) for n in range(count))
    (rank / "peers.json").write_bytes(b'{"waits":[%b],"counts":[%b]}' % (peers, peers))
    gaps = b",".join(b'{"rank":%d,"what":"w%d","reason":"r"}' % (n, n) for n in range(count))
    (rank.parent / "gaps.json").write_bytes(b'{"gaps":[%b]}' % gaps)
    (rank / "gaps.json").write_bytes(b"[%b]" % gaps)


@case()
def odd_numbers_in_names(folder: Path, _large: bool) -> None:
    for number, name in enumerate(("000", "\u00b2", "\u0663", "9" * 18, "9" * 200)):
        for place, file in (("rounds", "job.json"), ("incidents", "incident.json")):
            (folder / place / name).mkdir(parents=True)
            (folder / place / name / file).write_text('{"kind":"stall","round":%d}' % number)
        (folder / "incidents" / "000" / "n0" / f"rank-{name}").mkdir(parents=True)


@case()
def many_groups_in_beats(folder: Path, large: bool) -> None:
    incident = _incident(folder, 1_000_000)
    for number in range(64 if large else 4):
        rank = incident / "n0" / f"rank-{number}"
        rank.mkdir(parents=True)
        groups = {f"g{n}": list(range(n, n + 1000)) for n in range(500 if large else 50)}
        (rank / "beat.json").write_text(json.dumps({"pid": 1, "groups": groups}))


@case()
def large_world(folder: Path, _large: bool) -> None:
    incident = _incident(folder, (1 << 31) - 1)
    (incident / "n0" / "rank-0").mkdir(parents=True)
    (incident / "n0" / "rank-0" / "exit.json").write_text('{"code":1,"pid":5}')


@case()
def wild_incident(folder: Path, _large: bool) -> None:
    incident = _incident(
        folder, 2, '{"kind":"exit","opened_ns":99999999999999999999999,"round":-7,"world_size":-5}'
    )
    (incident / "report.json").write_text('{"findings":' * 1000)
    (folder / "incidents" / "001").mkdir()
    (folder / "incidents" / "001" / "incident.json").write_text(
        '{"kind":"\\u202e<script>","opened_ns":9223372036854775807,"world_size":9223372036854775807,'
        '"cwd":"%s","stalled_s":1e308,"job":{"command":["\\u0000"],"started_ns":-1,"exit_code":-99}}'
        % ("/x" * 9000)
    )
    rank = folder / "incidents" / "001" / "n0" / "rank-99999999999999999999"
    rank.mkdir(parents=True)
    (rank / "log.txt").write_bytes(LINE)


@case()
def many_incidents(folder: Path, large: bool) -> None:
    for number in range(20_000 if large else 500):
        incident = folder / "incidents" / f"{number:05d}"
        incident.mkdir(parents=True)
        record = {"kind": "exit", "round": number, "command_exit": 1, "opened_ns": number}
        (incident / "incident.json").write_text(json.dumps(record))
        (folder / "rounds" / str(number)).mkdir(parents=True)
        (folder / "rounds" / str(number) / "job.json").write_text(
            '{"command":["x"],"started_ns":%d}' % number
        )


@case()
def many_ranks(folder: Path, large: bool) -> None:
    incident = _incident(folder, 20_000)
    for number in range(10_000 if large else 300):
        rank = incident / "n0" / f"rank-{number}"
        rank.mkdir(parents=True)
        (rank / "exit.json").write_text('{"code":1,"pid":%d}' % number)
        (rank / "beat.json").write_text('{"pid":%d,"age_s":50.0,"enqueued":3}' % number)


@case()
def many_stacks(folder: Path, large: bool) -> None:
    rank = _incident(folder, 2) / "n0" / "rank-0"
    rank.mkdir(parents=True)
    frames = [
        {
            "name": f"f{n}",
            "filename": "a.py",
            "short_filename": "a.py",
            "line": n,
            "locals": None,
            "module": None,
            "is_entry": False,
        }
        for n in range(5_000 if large else 500)
    ]
    threads = [
        {
            "pid": 1,
            "thread_id": n,
            "thread_name": "t",
            "os_thread_id": n,
            "active": True,
            "owns_gil": False,
            "frames": frames,
        }
        for n in range(40 if large else 4)
    ]
    text = json.dumps(threads)
    for number in range(10 if large else 3):
        (rank / f"stacks-{number}.json").write_text(text)


@case()
def many_sources(folder: Path, large: bool) -> None:
    rank = _incident(folder, 2) / "n0" / "rank-0"
    (rank / "sources").mkdir(parents=True)
    names = {f"/job/{n}.py": f"{n}.py" for n in range(5_000 if large else 200)}
    (rank / "sources" / "index.json").write_text(json.dumps({"files": names}))
    source = (
        b"x = ("
        + b"(" * 500
        + b"1"
        + b")" * 500
        + b")\n"
        + b"y = [1]\n" * (12_000 if large else 100)
    )
    for name in names.values():
        (rank / "sources" / name).write_bytes(source)
    frames = [{"name": "f", "filename": path, "line": 3} for path in list(names)[:50]]
    (rank / "exception.json").write_text(
        json.dumps({"type": "ValueError", "message": "x" * 5_000_000, "frames": frames})
    )
    deep = b"a" + b".a" * 200_000 + b"\n" + b"-" * 200_000 + b"1\n" + b"not " * 100_000 + b"1\n"
    (rank / "sources" / "0.py").write_bytes(deep)


@case()
def inspections(folder: Path, large: bool) -> None:
    rank = _incident(folder, 2) / "n0" / "rank-0"
    rank.mkdir(parents=True)
    line = b'{"kind":"tensor","step":%d,"name":"p%d","nan":1e999,"values":[NaN]}\n'
    with (rank / "inspect.jsonl").open("wb") as file:
        for n in range(500_000 if large else 20_000):
            file.write(line % (n, n))
