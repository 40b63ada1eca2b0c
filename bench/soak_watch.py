"""What the processes of a job hold: memory, descriptors, threads, and the files of its folders."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_MEMORY = re.compile(r"^(?:Anonymous|Pss_Shmem):\s+(\d+) kB", re.MULTILINE)
_MAPPING = re.compile(r"([0-9a-f]+)-[0-9a-f]+ (\S+) \S+ \S+ \S+\s*(.*)")
# glibc maps the heap of a thread at a multiple of its largest size.
_ARENA_BYTES = 64 << 20
_PROBE_THREAD = "whystuck-probe"
_SCRIPT = "soak_job.py"


@dataclass
class Job:
    """A job that runs, by the pid of the process that was started, and the folders that it fills.

    ``folders`` are measured with the processes; the job folder is found when it is there.
    """

    pid: int
    folders: dict[str, Path] = field(default_factory=dict)
    samples: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    times_s: list[float] = field(default_factory=list)
    # Of each part, all processes that were it: more than one says that it was started anew.
    pids: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def sample(self, now_s: float) -> None:
        """Measure all parts once; a part that is not there then is not a number."""
        figures: dict[tuple[str, str], float] = {}
        for name, process in self.parts():
            self.pids[name].add(process.pid)
            # One that ends this moment is left out.
            with suppress(OSError, psutil.Error):
                for metric, value in _measure(process):
                    figures[name, metric] = value
                if name.startswith("rank"):
                    text = Path(f"/proc/{process.pid}/smaps").read_text()
                    figures[name, "thread heaps"] = measure_arenas(text)
        for name, folder in self.folders.items():
            figures[name, "MiB"], figures[name, "files"] = measure_folder(folder)
        for key in figures.keys() - self.samples.keys():
            self.samples[key] = [float("nan")] * len(self.times_s)
        self.times_s.append(now_s)
        for key, values in self.samples.items():
            values.append(figures.get(key, float("nan")))

    def show_samples(self) -> str:
        """Return all samples as JSON, by part and figure."""
        named = {" ".join(key): values for key, values in self.samples.items()}
        return json.dumps({"time_s": self.times_s, **named})

    def parts(self) -> Iterator[tuple[str, psutil.Process]]:
        """Name the processes of the job, with or without whystuck."""
        try:
            front = psutil.Process(self.pid)
            is_ours = "whystuck" in front.cmdline()
        except psutil.Error:  # it has ended
            return
        yield "front" if is_ours else "launcher", front
        ranks = []
        for process in front.children(recursive=True):
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if (name := self._name(process.pid, words)) == "rank":
                ranks.append(process)
            elif name:
                yield name, process
        ranks.sort(key=lambda one: one.pid)
        yield from ((f"rank {number}", one) for number, one in enumerate(ranks))

    def find(self, name: str) -> list[int]:
        """Return the pids of the parts whose name begins so."""
        return [one.pid for part, one in self.parts() if part.startswith(name)]

    def _name(self, pid: int, words: list[str]) -> str:
        if any(word.endswith("launch/output/relay.py") for word in words):
            return "relay"
        if "agent" in words and "--job-dir" in words:
            self.folders.setdefault("job folder", Path(words[words.index("--job-dir") + 1]))
            return "agent"
        if any(Path(word).name == "torchrun" for word in words) and "whystuck" not in words:
            return "launcher"
        if any(word.endswith(_SCRIPT) for word in words) and "whystuck" not in words:
            return "rank"
        folder = self.folders.get("job folder")
        if "whystuck" in words and folder and (folder / "owner").read_text() == str(pid):
            return "watcher"
        return ""


def _measure(process: psutil.Process) -> Iterator[tuple[str, float]]:
    """Yield what a process holds; memory is its own, and its share of what lies in /dev/shm.

    Pages of files are left out: what is shared with other processes of the machine comes and goes
    with these. What a process shares with one that it has forked is counted as a whole: a share of
    it grows whenever one of both writes to a page, for hours, with nothing taken anew.
    """
    place = Path("/proc") / str(process.pid)
    text = (place / "smaps_rollup").read_text()
    yield "MiB", sum(int(kib) for kib in _MEMORY.findall(text)) / 1024
    yield "descriptors", float(sum(1 for _ in (place / "fd").iterdir()))
    yield "threads", float(sum(1 for _ in (place / "task").iterdir()))
    for task in (place / "task").iterdir():
        with suppress(OSError):
            if (task / "comm").read_text().strip() == _PROBE_THREAD:
                yield "probe's CPU s", int((task / "schedstat").read_text().split()[0]) / 1e9
    used = process.cpu_times()
    yield "CPU s", used.user + used.system


def measure_arenas(smaps: str) -> float:
    """Return the MiB that lie in heaps of threads.

    They grow with traces, while the first heap and Python's hardly do.
    """
    size_kib, is_heap = 0, False
    for line in smaps.splitlines():
        if mapping := _MAPPING.match(line):
            begin, rights, name = mapping.groups()
            is_heap = not int(begin, 16) % _ARENA_BYTES and rights == "rw-p" and not name
        elif is_heap and line.startswith("Anonymous:"):
            size_kib += int(line.split()[1])
    return size_kib / 1024


def measure_folder(folder: Path) -> tuple[float, float]:
    """Return the MiB on disk and the number of files and folders below a folder."""
    size = count = 0
    for place, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            with suppress(OSError):
                size += Path(place, name).lstat().st_blocks * 512
    return size / 2**20, float(count)


__all__ = ["Job", "measure_arenas", "measure_folder"]
