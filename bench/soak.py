"""Whether a long job grows under whystuck: memory, descriptors, threads, files.

    python bench/soak.py [--minutes 45] [--collectives 1000000] [--keep DIR]

`soak_job.py` runs with two ranks under ``whystuck run``, everything on by default, and makes
process groups and destroys them all the time. Beside it, commands that users give come one after
the other: recording is switched off, on, and to inspection; traces are taken, and others asked for
and cancelled; processes and agents are listed; every tenth time a snapshot is taken. The same job
without whystuck runs at the same time. Kineto takes the same traces of it for an agent that is no
part of it, as it does for dynolog: what grows there too is torch's.
torch 2.13 keeps about 0.65 KB of each group that is made and destroyed, 4 MiB an hour at the pace
of this job. "thread heaps" are shown only: most of what a rank grows by traces is there.

All is measured every 5 s. After the first two fifths, a slope an hour is fitted to each figure; of
memory, descriptors and threads to the lowest of some samples, as commands take for some seconds
what they give back (`soak_slopes.py`). The slope of the mean of memory is shown only. The bench
fails where the interval of a slope lies wholly above zero, above what the job without whystuck
grows, and above a floor over the measured time: 1 MiB of memory, which is one arena of Python's
allocator; half a descriptor, thread or file. It fails too when a part was started anew, a command
failed, or the logs exceed their caps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.soak_slopes import Slope, fit_slope
from bench.soak_watch import Job, measure_folder

from whystuck.launch.output.logfile import MAX_LOG_BYTES

JOB = Path(__file__).with_name("soak_job.py")
RANKS = 2
EVERY_S = 5.0
CYCLE_S = 30.0
TOLD_EVERY = 12
# The agent remembers 64 jobs, which the commands fill in 16 of 45 min.
WARM_UP = 0.4
FLOORS = {"MiB": 1.0, "descriptors": 0.5, "threads": 0.5, "files": 0.5}
"""What may grow over the measured time, by metric. CPU seconds are shown only."""
# Traces and inspections of a rank take 5 MiB, and give them back within seconds.
LOWEST = ("MiB", "descriptors", "threads")
# The evidence grows by logs, up to their caps, which is checked by size.
CAPPED = ("evidence",)
# Beside the logs: the op logs of the round, the records, the log of the agent.
OTHER_MIB = 64
OWN = ("front", "watcher", "relay", "agent", "job folder")
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Commands:
    """Gives commands to a job, one after the other, until it is told to stop."""

    job: Job
    bare: Job
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let the last command end."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        cycle = 0
        while not self._stop.is_set():
            begin_s = time.monotonic()
            self._cycle(cycle)
            cycle += 1
            self._stop.wait(max(0.0, begin_s + CYCLE_S - time.monotonic()))

    def _cycle(self, number: int) -> None:
        switch = ("switch", "--job", str(self.job.pid), "--timeout", "60")
        ranks = _name_ranks(self.job)
        traces = ("--yes", "-o", str(self.folder / "traces"))
        trace = ("trace", "start", *ranks, *traces)
        few = ("--iterations", "2", "--wait", "--timeout", "60")
        self._give(*switch, "set", "comm=off")
        self._give(*switch, "get")
        self._give(*switch, "set", "comm=on", "inspect=weights:every=200")
        self._give(*trace, *few)
        self._give("trace", "start", *_name_ranks(self.bare), *traces, *few)
        self._give(*switch, "set", "inspect=off")
        said = self._give(*trace, "--duration", "1", "--start-at", "+600", "--format", "json")
        if said:
            self._give("trace", "cancel", json.loads(said)["id"])
        self._give("trace", "list")
        self._give("agent", "--status")
        shutil.rmtree(self.folder / "traces", ignore_errors=True)
        if number % 10 == 9:
            place = str(self.folder / "snapshot")
            self._give("snapshot", *ranks, "--evidence", place, "--fail-on", "never")
            shutil.rmtree(place, ignore_errors=True)

    def _give(self, *words: str) -> str:
        """Give one command; return its output, nothing when the job is about to end."""
        if self._stop.is_set():
            return ""
        command = [sys.executable, "-m", "whystuck", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        name = " ".join(word for word in words[:2] if not word.startswith("-"))
        self.counts[name] += 1
        # A snapshot of a job that works may say that nothing is decided.
        if done.returncode not in ((0, 3) if name == "snapshot" else (0,)):
            self.failed.append(f"{' '.join(words)}: {done.returncode}: {done.stderr[-300:]}")
            return ""
        return done.stdout


def _name_ranks(job: Job) -> list[str]:
    return [word for pid in job.find("rank") for word in ("--pid", str(pid))]


@dataclass(frozen=True)
class Row:
    """One figure of one part: at the beginning and the end, its growth, and that without us."""

    part: str
    metric: str
    first: float
    last: float
    slope: Slope
    bare: Slope | None
    hours: float

    @property
    def is_growth(self) -> bool:
        """Return whether it surely grows, more than the same does without whystuck."""
        if self.metric not in FLOORS or self.part in CAPPED:
            return False
        torchs = max(0.0, self.bare.high) if self.bare else 0.0
        return bool(self.slope.low - torchs > FLOORS[self.metric] / self.hours)

    def show(self) -> str:
        """Return a line of the table."""
        one = self.slope
        bare = f"{self.bare.low:+.2f} to {self.bare.high:+.2f}" if self.bare else ""
        end = "  GROWS" if self.is_growth else ""
        return (
            f"{self.part:<12}{self.metric:<15}{self.first:>9.2f}{self.last:>9.2f}"
            f"{one.middle:>+10.2f}  {f'{one.low:+.2f} to {one.high:+.2f}':<20}{bare}{end}"
        )


def make_rows(job: Job, bare: Job) -> list[Row]:
    """Fit a slope to each figure, and set those of the ranks beside the same without whystuck."""
    rows = []
    for (part, metric), slope, ends, hours in _fit(job):
        theirs = {key: other for key, other, _, _ in _fit(bare)}
        rows.append(Row(part, metric, *ends, slope, theirs.get((part, metric)), hours))
    return sorted(rows, key=lambda row: (not row.part.startswith("rank"), row.part, row.metric))


def make_table(rows: list[Row]) -> str:
    """Return the table, with a line for each figure."""
    head = f"{'part':<12}{'figure':<15}{'first':>9}{'last':>9}{'an hour':>10}  "
    return "\n".join([f"{head}{'95 %':<20}without us", *(row.show() for row in rows)]) + "\n"


def _fit(job: Job) -> list[tuple[tuple[str, str], Slope, tuple[float, float], float]]:
    times_s = np.array(job.times_s)
    late = times_s >= times_s[0] + WARM_UP * (times_s[-1] - times_s[0])
    found = []
    for key, values in job.samples.items():
        figures = np.array(values)
        is_kept = late & ~np.isnan(figures)
        x, y = times_s[is_kept], figures[is_kept]
        if len(x) > 1:
            hours = float(x[-1] - x[0]) / 3600
            ends = float(y[0]), float(y[-1])
            found.append((key, fit_slope(x, y, lowest=key[1] in LOWEST), ends, hours))
            if key[1] == "MiB":
                found.append(((key[0], "MiB, mean"), fit_slope(x, y), ends, hours))
    return found


def start_jobs(
    options: argparse.Namespace, folder: Path
) -> tuple[list[subprocess.Popen[bytes]], Job, Job]:
    """Start the job under whystuck, and the same without."""
    seconds = options.minutes * 60
    job = [str(JOB), "--seconds", str(seconds), "--rate", str(options.collectives / seconds)]
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    torchrun += ["--nproc-per-node", str(RANKS)]
    run = [sys.executable, "-m", "whystuck", "run", "--evidence", str(folder / "evidence"), "--"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WHYSTUCK_")}
    started = []
    for name, command, more in (
        ("watched", [*run, *torchrun, *job], {}),
        ("bare", [sys.executable, *torchrun, *job], {"KINETO_USE_DAEMON": "1"}),
    ):
        with (folder / f"{name}.err").open("wb") as said:
            one = subprocess.Popen(
                [*command, "--said", str(folder / f"{name}.json")],
                env=kept | _ENVIRONMENT | more,
                stdout=subprocess.DEVNULL,
                stderr=said,
                stdin=subprocess.DEVNULL,
            )
        started.append(one)
    watched = Job(started[0].pid, {"evidence": folder / "evidence"})
    return started, watched, Job(started[1].pid)


@contextmanager
def agent_beside(folder: Path) -> Iterator[None]:
    """Run an agent where torch asks for dynolog."""
    words = ("agent", "--abstract", "--port", "0", "--folder", str(folder / "agent"))
    command = [sys.executable, "-m", "whystuck", *words, "--log-file", str(folder / "agent.log")]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure(options: argparse.Namespace, folder: Path) -> tuple[Job, Job, Commands, list[int]]:
    """Run both jobs to their ends, and measure them on the way."""
    with agent_beside(folder):
        return _measure(options, folder)


def _measure(options: argparse.Namespace, folder: Path) -> tuple[Job, Job, Commands, list[int]]:
    started, watched, bare = start_jobs(options, folder)
    wait_for_ranks(started, watched, bare)
    commands = Commands(watched, bare, folder)
    commands.start()
    end_s = time.monotonic() + options.minutes * 60 - 3 * EVERY_S
    while time.monotonic() < end_s and all(one.poll() is None for one in started):
        begin_s = time.monotonic()
        watched.sample(begin_s)
        bare.sample(time.monotonic())
        if len(watched.times_s) % TOLD_EVERY == 0:
            # A run that is ended early has told something.
            (folder / "so-far.txt").write_text(make_table(make_rows(watched, bare)))
            for name, job in (("watched", watched), ("bare", bare)):
                (folder / f"{name}-samples.json").write_text(job.show_samples())
        time.sleep(max(0.0, begin_s + EVERY_S - time.monotonic()))
    commands.stop()
    return watched, bare, commands, [one.wait() for one in started]


def wait_for_ranks(started: list[subprocess.Popen[bytes]], *jobs: Job) -> None:
    """Wait until all ranks are there; raise SystemExit when a job ends before."""
    while not all(len(job.find("rank")) == RANKS for job in jobs):
        if any(one.poll() is not None for one in started):
            raise SystemExit("a job ended before it trained")
        time.sleep(0.5)


def list_problems(
    watched: Job, commands: Commands, codes: list[int], rows: list[Row], folder: Path
) -> list[str]:
    """Return what is wrong, one sentence each."""
    problems = [f"{row.part}: {row.metric} grows" for row in rows if row.is_growth]
    problems += [f"a command failed: {one}" for one in commands.failed]
    problems += [f"a job ended with {code}" for code in codes if code]
    problems += [
        f"{part} was started anew: {sorted(pids)}"
        for part, pids in watched.pids.items()
        if len(pids) > 1
    ]
    missing = [name for name in OWN if (name, "MiB") not in watched.samples]
    problems += [f"{name} was never measured" for name in missing]
    told = [one.read_text() for one in (folder / "evidence").rglob("gaps.json")]
    if any("disarmed" in text for text in told):
        # It holds and does less then: the figures are those of another job.
        problems.append("a probe disarmed itself: the figures are not those of one that works")
    cap = (2 * RANKS + 2) * MAX_LOG_BYTES / 2**20 + OTHER_MIB
    size, _ = measure_folder(folder / "evidence")
    if size > cap:
        problems.append(f"the evidence has {size:.0f} MiB, more than {cap:.0f}")
    if any((folder / "evidence" / "incidents").glob("*")):
        problems.append("an incident was reported of a job that was well")
    return problems


def main() -> None:
    """Run, print a table, and exit with 1 when something grows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--collectives", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="leave samples, evidence and errors there")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="soak"))
    folder.mkdir(parents=True, exist_ok=True)
    watched, bare, commands, codes = measure(options, folder)
    rows = make_rows(watched, bare)
    print(make_table(rows), end="")
    for name in ("watched", "bare"):
        print(f"{name}: {(folder / f'{name}.json').read_text()}")
    print("commands:", dict(commands.counts))
    problems = list_problems(watched, commands, codes, rows, folder)
    for problem in problems:
        print(f"problem: {problem}")
    if options.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        samples = {
            f"{part}: {metric}": values for (part, metric), values in watched.samples.items()
        }
        (folder / "samples.json").write_text(json.dumps({"s": watched.times_s, **samples}))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
