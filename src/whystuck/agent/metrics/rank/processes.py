"""What the kernel says of each rank: its time, memory, threads, files, and what it waits for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from whystuck.agent.metrics.families import counter, fill, gauge
from whystuck.agent.metrics.rank.labels import RANK_LABELS, RankProcess
from whystuck.collect.processes.proc_files import read_small, read_stat
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

EVERY_S = 5.0
# Walking the page tables of a large process keeps others from its memory map.
PSS_EVERY_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_RANKS = 512
_MAX_LISTED_FILES = 4096
_KB = 1024

_CPU_SECONDS = counter(
    "rank_cpu_seconds_total", "Processor time of a rank, all threads.", *RANK_LABELS, "mode"
)
_IO_BYTES = counter(
    "rank_io_bytes_total",
    "Bytes that a rank moved: by system calls (call) or to and from disks (disk).",
    *RANK_LABELS,
    "layer",
    "direction",
)
_FAULTS = counter("rank_page_faults_total", "Page faults of a rank.", *RANK_LABELS, "kind")
_SWITCHES = counter(
    "rank_main_thread_context_switches_total",
    "Times the main thread of a rank gave up its processor or lost it.",
    *RANK_LABELS,
    "kind",
)
_STATE = gauge(
    "rank_process_state", "1 for the state that the main thread is in.", *RANK_LABELS, "state"
)
_PLAIN = {
    "rss": gauge("rank_resident_memory_bytes", "Memory of a rank, shared pages too.", *RANK_LABELS),
    "pss": gauge(
        "rank_proportional_memory_bytes",
        "Memory of a rank, each shared page divided by those who share it.",
        *RANK_LABELS,
    ),
    "swap": gauge("rank_swapped_memory_bytes", "Memory of a rank that is in swap.", *RANK_LABELS),
    "peak": gauge("rank_peak_resident_memory_bytes", "Most it has had so far.", *RANK_LABELS),
    "virtual": gauge("rank_virtual_memory_bytes", "Addresses a rank has mapped.", *RANK_LABELS),
    "threads": gauge("rank_threads", "Threads of a rank.", *RANK_LABELS),
    "files": gauge("rank_open_fds", "Open files, sockets and pipes of a rank.", *RANK_LABELS),
    "uptime": gauge("rank_uptime_seconds", "Seconds since a rank was started.", *RANK_LABELS),
    "delay": counter(
        "rank_block_io_delay_seconds_total",
        "Seconds for which a rank waited for disks, where the kernel counts them.",
        *RANK_LABELS,
    ),
}
FAMILIES: tuple[MetricFamily, ...] = (
    *(_CPU_SECONDS, _IO_BYTES, _FAULTS, _SWITCHES, _STATE),
    *_PLAIN.values(),
)
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk-sleep",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
}
_IO_FIELDS = {
    b"rchar": ("call", "read"),
    b"wchar": ("call", "write"),
    b"read_bytes": ("disk", "read"),
    b"write_bytes": ("disk", "write"),
}
_STATUS_FIELDS = {b"VmSwap": "swap", b"VmHWM": "peak"}
_SWITCH_FIELDS = {b"voluntary_ctxt_switches": "voluntary", b"nonvoluntary_ctxt_switches": "forced"}
_WANTED = (*_STATUS_FIELDS, *_SWITCH_FIELDS)
_MAX_NUMBER_BYTES = 64  # with the blanks before it


class ProcessSource:
    """Reads three files of /proc for each rank; ``is_pss`` adds a dear one, once a minute."""

    name = "processes"
    families = FAMILIES

    def __init__(
        self,
        list_ranks: Callable[[], Sequence[RankProcess]],
        *,
        every_s: float = EVERY_S,
        is_pss: bool = False,
    ) -> None:
        self.every_s = every_s
        self.problem = ""
        self._list_ranks = list_ranks
        self._is_pss = is_pss
        self._refused: set[str] = set()
        self._pss: dict[tuple[int, int], float] = {}
        self._pss_read_s = float("-inf")

    def collect(self) -> Iterable[Sample]:
        """Read /proc of each rank."""
        now_ns = time.time_ns()
        ranks = self._list_ranks()[:_MAX_RANKS]
        self._refused = set()
        self._read_all_pss(ranks)
        samples = [sample for rank in ranks for sample in self._read_rank(rank, now_ns)]
        names = ", ".join(sorted(self._refused))
        self.problem = f"{names} of some ranks may not be read" if names else ""
        return samples

    def _read_rank(self, rank: RankProcess, now_ns: int) -> list[Sample]:
        labels = rank.labels
        status = _read_fields(self._read_file(rank.pid, "status"), _WANTED)
        moved = _read_fields(self._read_file(rank.pid, "io"), _IO_FIELDS)
        files = _count_files(rank.pid)
        # Last: when the process still lives then, all that was read before is of it.
        stat = read_stat(rank.pid)
        if not stat or stat[0] in {b"Z", b"X"} or int(stat[19]) != rank.started_ticks:
            return []
        delay_ticks = int(stat[39]) if len(stat) > 39 else 0  # noqa: PLR2004 - as in proc(5)
        values: dict[str, float | None] = {
            "rss": int(stat[21]) * _PAGE_BYTES,
            "virtual": int(stat[20]),
            "threads": int(stat[17]),
            "files": files,
            "uptime": time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / _TICKS_PER_S,
            # The kernel says 0 when it does not count.
            "delay": delay_ticks / _TICKS_PER_S if delay_ticks else None,
            "pss": self._pss.get((rank.pid, rank.started_ticks)),
            **{name: status[key] * _KB for key, name in _STATUS_FIELDS.items() if key in status},
        }
        samples = fill(_PLAIN, values, labels, now_ns)

        def add(family: MetricFamily, value: float, *more: str) -> None:
            samples.append(
                Sample(family=family, value=value, labels=(*labels, *more), time_ns=now_ns)
            )

        add(_CPU_SECONDS, int(stat[11]) / _TICKS_PER_S, "user")
        add(_CPU_SECONDS, int(stat[12]) / _TICKS_PER_S, "system")
        add(_FAULTS, int(stat[7]), "minor")
        add(_FAULTS, int(stat[9]), "major")
        add(_STATE, 1, _STATES.get(stat[0].decode(), "other"))
        for key, kind in _SWITCH_FIELDS.items():
            if key in status:
                add(_SWITCHES, status[key], kind)
        for key, number in moved.items():
            if key in _IO_FIELDS:
                add(_IO_BYTES, number, *_IO_FIELDS[key])
        return samples

    def _read_file(self, pid: int, name: str) -> bytes:
        try:
            return read_small(pid, name)
        except PermissionError:
            self._refused.add(name)
        except OSError:
            pass
        return b""

    def _read_all_pss(self, ranks: Sequence[RankProcess]) -> None:
        if not self._is_pss or time.monotonic() - self._pss_read_s < PSS_EVERY_S:
            return
        self._pss_read_s = time.monotonic()
        self._pss.clear()
        for one in ranks:
            with suppress(OSError):
                told = _read_fields(Path(f"/proc/{one.pid}/smaps_rollup").read_bytes(), [b"Pss"])
                if b"Pss" in told:
                    self._pss[one.pid, one.started_ticks] = told[b"Pss"] * _KB


def _read_fields(text: bytes, names: Iterable[bytes]) -> dict[bytes, int]:
    """Find lines of some names, a colon and a number; most of the 60 lines nobody wants."""
    found = {}
    text = b"\n" + text
    for name in names:
        begin = text.find(b"\n%b:" % name)
        if begin < 0:
            continue
        begin += len(name) + 2
        words = text[begin : begin + _MAX_NUMBER_BYTES].split(None, 1)
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found


def _count_files(pid: int) -> int | None:
    """Return how many files a process has open: newer kernels say so as the size of the folder."""
    folder = f"/proc/{pid}/fd"
    try:
        if (count := os.stat(folder).st_size) > 0:  # noqa: PTH116 - many times a minute
            return count
        with os.scandir(folder) as entries:
            return sum(1 for _, _ in zip(entries, range(_MAX_LISTED_FILES), strict=False))
    except OSError:
        return None
