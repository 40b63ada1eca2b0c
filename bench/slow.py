"""Whether the rank that becomes slow is named, with its phase, how soon, and nobody else ever.

    python bench/slow.py [--curve | --links | --windows [300]] [--seeds 5] [--resampled 1000]
                         [--jobs 2] [--quick] [--keep DIR]

Jobs of 4 ranks (`slow_job.py`) run under ``whystuck run --marks``. The seed draws the rank and the
step from which it takes 20 ms longer for each step of 180 ms, in one phase; a checkpoint takes ten
times that every tenth step, and a cgroup gets 6 % of a core. Each run is judged as it
would have been after each fifth step, with the marks and without them: the bar is the right rank
and phase within 50 steps, in 95 % of the runs. ``--curve`` runs slow jobs alone, with 5, 10, 20 and
50 % of a step, and prints a table in Markdown.

As root, a job has each rank on a host of its own, a network namespace, and one link becomes slow:
what leaves a host, what comes to it, or what goes from one host to another one. The link must be
named within 50 steps, and no rank. Ranks that compute longer there, and nobody, are decoys.
``--links`` runs these alone.

Healthy jobs, with jitter, uneven work, stages, uneven inputs, evaluations and saves, are judged in
windows of 40 steps, each for itself: none may blame anybody. As many as ``--resampled`` are put
together of blocks of these runs (`slow_windows.py`), without what the CPU tells. ``--windows`` runs
these alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.late import pick_rows
from bench.namespaces import Hosts, find_lack
from bench.slow_job import LINKS, QUIET, SLOW
from bench.slow_windows import draw_window

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Finding, Severity
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.marks import Marks
from whystuck.pipeline import read_evidence

WORLD, STEP_S, EXTRA_S = 4, 0.18, 0.02
BAR_STEPS, BAR_SHARE, WINDOW = 50, 0.95, 40
EVERY = 5
# What all ranks of a job with hosts send in an op of it: elements of float32, squared.
WIDTH, MBIT = 512, 512 * 512 * 32 / 1e6
SIDES = ("out", "in", "pair")
DECOYS = ("forward", "none")
# Healthy jobs whose ranks have roles of their own.
WITH_ROLES = {"pipeline", "join"}
CGROUPS = Path("/sys/fs/cgroup")
SHARES = (0.05, 0.1, 0.2, 0.5)
WINDOWS = 300
# A window that is put together may be of a job that is too short; so many are tried for each.
MAX_TRIES = 3
# By kind, and whether marks count.
Answers = dict[tuple[str, bool], list["Answer"]]


@dataclass(frozen=True)
class Run:
    """One job: what it does, and where its evidence is."""

    spec: dict[str, Any]
    folder: Path

    @property
    def phase(self) -> str:
        kind = str(self.spec["kind"])
        return "" if kind == "throttle" else kind

    def start(self) -> str:
        """Run the job; return what went wrong."""
        if "side" not in self.spec:
            torchrun = str(Path(sys.executable).with_name("torchrun"))
            launch = [torchrun, "--standalone", "--nproc-per-node", str(WORLD)]
            return self._run([*launch, *self._command()])
        with Hosts(WORLD) as hosts, tempfile.TemporaryDirectory() as folder:
            self.spec["note"] = f"{folder}/onset"
            is_over = threading.Event()
            limiter = threading.Thread(target=self._limit, args=(hosts, is_over))
            limiter.start()
            try:
                return self._run(hosts.launch([sys.executable, *self._command()]))
            finally:
                is_over.set()
                limiter.join()

    def _command(self) -> list[str]:
        return [str(Path(__file__).with_name("slow_job.py")), json.dumps(self.spec)]

    def _run(self, command: list[str]) -> str:
        whystuck = str(Path(sys.executable).with_name("whystuck"))
        run = [whystuck, "run", "--marks", "--no-agent", "--evidence", str(self.folder), "--"]
        done = subprocess.run(
            [*run, *command],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            timeout=900,
            check=False,
        )
        return "" if done.returncode == 0 else done.stderr.decode()[-2000:]

    def _limit(self, hosts: Hosts, is_over: threading.Event) -> None:
        """Make the link slow when the job says that the onset has come."""
        while not Path(self.spec["note"]).exists():
            if is_over.wait(0.01):
                return
        one, side = int(self.spec["culprit"]), str(self.spec["side"])
        if side == "pair":
            hosts.limit_pair(one, int(self.spec["target"]), self.spec["mbit"])
        elif side:
            hosts.limit(one, side, self.spec["mbit"])

    def is_right_link(self, found: Finding) -> bool:
        """Return whether a finding names the link that is slow, and no rank."""
        spec, details = self.spec, found.details
        if found.code != "S303" or found.culprits.ranks:
            return False
        one, target = spec["culprit"], spec["target"]
        if spec["side"] == "pair":
            return [details["from"], details["to"]] == [one, target]
        return one == details["from" if spec["side"] == "out" else "to"] and one in details["ends"]

    def list_alarms(self) -> list[str]:
        """Return what was said of this run while it went on, or at its end."""
        reports = sorted(self.folder.glob("incidents/*/report.json"))
        found = [json.loads(path.read_text())["findings"] for path in reports]
        return [f"{one[0]['code']}: {one[0]['summary']}" for one in found if one]

    def read(self) -> Evidence:
        # The folder of the node: those above it lead to an incident, which ends where it was made.
        (node,) = (path for path in (self.folder / "rounds/0").iterdir() if path.is_dir())
        evidence = read_evidence(node)
        return replace(evidence, incident=replace(evidence.incident, kind="slow"))


def cut(evidence: Evidence, first: int, last: int, *, has_marks: bool = True) -> Evidence:
    """Return what was known after a step, or in a window of steps."""
    table, marks, ops = evidence.collectives, evidence.marks, evidence.ops
    here = (table.step >= first) & (table.step <= last)
    end_ns = int(table.created_ns[table.step <= last].max(initial=0))
    points = [
        replace(one, points=tuple(point for point in one.points if point.time_ns <= end_ns))
        for one in evidence.cpu
    ]
    chosen = (marks.step >= first) & (marks.step <= last) & has_marks
    columns = ("rank", "log", "kind", "name", "step", "begin_ns", "end_ns")
    kept = {name: getattr(marks, name)[chosen] for name in columns}
    return replace(
        evidence,
        collectives=pick_rows(table, here),
        ops=pick_rows(ops, (ops.step >= first) & (ops.step <= last)),
        marks=replace(marks, **kept) if has_marks else Marks(),
        cpu=tuple(points),
    )


def blame(evidence: Evidence) -> Finding | None:
    """Return the first finding that is more than a note."""
    found = [one for one in diagnose(evidence).findings if one.severity is not Severity.NOTE]
    return found[0] if found else None


@dataclass(frozen=True)
class Answer:
    """After how many steps since the onset the right answer came, and whether a wrong one did."""

    steps: int | None
    is_wrong: bool


def judge_slow(run: Run, *, has_marks: bool) -> Answer:
    """Judge a run as it went on."""
    evidence, spec = run.read(), run.spec
    for last in range(int(spec["onset"]), int(spec["steps"]), EVERY):
        found = blame(cut(evidence, 0, last, has_marks=has_marks))
        if found is None:
            continue
        if spec["kind"] in LINKS:
            is_right = run.is_right_link(found)
            return Answer(last - int(spec["onset"]), is_wrong=not is_right)
        is_right = found.culprits.ranks == [spec["culprit"]]
        phase = found.details.get("phase", "")
        if has_marks and run.phase:
            if is_right and phase == "unknown":
                continue
            is_right &= phase == run.phase
        return Answer(last - int(spec["onset"]), is_wrong=not is_right)
    return Answer(None, is_wrong=False)


def _is_in_time(answer: Answer) -> bool:
    return answer.steps is not None and answer.steps <= BAR_STEPS and not answer.is_wrong


def list_windows(run: Run) -> Iterator[Finding | None]:
    """Judge a healthy run in windows that do not overlap."""
    evidence = run.read()
    steps = int(evidence.collectives.step.max(initial=0))
    for first in range(0, steps - WINDOW + 1, WINDOW):
        yield blame(cut(evidence, first, first + WINDOW - 1))


def draw(kind: str, seed: int, folder: Path, extra_s: float, group: str) -> Run:
    source = random.Random(f"{kind} {seed} {extra_s}")
    onset = source.randint(30, 60)
    spec = {
        "kind": kind, "culprit": source.randrange(WORLD), "onset": onset, "steps": onset + 75,
        "step_s": STEP_S, "extra_s": extra_s, "seed": seed, "group": group,
    }  # fmt: skip
    return Run(spec, folder / f"{kind}-{seed}-{round(extra_s * 1000)}")


def draw_link(kind: str, seed: int, folder: Path) -> Run:
    """Draw which link becomes slow, or which decoy there is."""
    source = random.Random(f"hosts {kind} {seed}")
    onset, one = source.randint(30, 60), source.randrange(WORLD)
    # In a ring, only what goes to the rank before is used; so do stages and groups of a square.
    ways = {"link": [one - 1], "link-stages": [one - 1, one + 1], "link-groups": [one ^ 1, one ^ 2]}
    targets = [way % WORLD for way in ways.get(kind, [one - 1])]
    if kind == "link-stages":
        targets = [way for way in targets if abs(way - one) == 1]
    # A ring passes on three halves of what is reduced, in two ops of a step.
    mbit = MBIT * (3 if kind == "link" else 1)
    spec = {
        "kind": kind, "culprit": one, "target": source.choice(targets), "onset": onset,
        "side": SIDES[seed % len(SIDES)] if kind in LINKS else "",
        "mbit": round(mbit / source.uniform(0.1, 0.2), 1), "steps": onset + 75,
        "step_s": STEP_S, "extra_s": 2 * EXTRA_S, "seed": seed, "width": WIDTH,
    }  # fmt: skip
    return Run(spec, folder / f"hosts-{kind}-{seed}")


def measure_links(arguments: argparse.Namespace, folder: Path) -> bool:
    """Run jobs whose ranks have hosts of their own; print which links were named, and how soon."""
    lack = find_lack()
    if lack:
        print(f"\nlinks: not measured, {lack}")
        return True
    kinds = LINKS[:1] if arguments.quick else (*LINKS, *DECOYS)
    runs = [draw_link(kind, seed, folder) for kind in kinds for seed in range(arguments.seeds)]
    _start_all(runs, arguments.jobs)
    print("\nlinks between 4 hosts, and decoys there")
    print(f"{'kind':12}{'right':>8}{'wrong':>7}{'late or none':>14}  steps until named")
    total = Counter[str]()
    for kind in kinds:
        own = [judge_slow(one, has_marks=True) for one in runs if one.spec["kind"] == kind]
        wrong = sum(one.is_wrong for one in own)
        right = sum(_is_in_time(one) or (kind == "none" and one.steps is None) for one in own)
        total += Counter(right=right, all=len(own))
        soon = " ".join(str(one.steps) for one in own)
        print(f"{kind:12}{right:>8}{wrong:>7}{len(own) - right - wrong:>14}  {soon}")
    print(f"{'all':12}{total['right']:>8} of {total['all']}")
    return total["right"] >= BAR_SHARE * total["all"]


def make_group(seed: int) -> str:
    """Make a cgroup with 6 % of a core; empty where that is not allowed."""
    is_old = (CGROUPS / "cpu").is_dir()
    group = (CGROUPS / "cpu" if is_old else CGROUPS) / f"whystuck-slow-{os.getpid()}-{seed}"
    try:
        group.mkdir()
        if is_old:
            (group / "cpu.cfs_quota_us").write_text("6000")
        else:
            (group / "cpu.max").write_text("6000 100000")
    except OSError:
        return ""
    return str(group)


def run_slow(
    arguments: argparse.Namespace, folder: Path, extra_s: float, kinds: Sequence[str]
) -> Answers:
    """Run slow jobs; return what was said of them, with the marks and without."""
    groups = [make_group(seed) for seed in range(arguments.seeds)]
    runs = [
        draw(kind, seed, folder, extra_s, groups[seed])
        for kind in kinds
        for seed in range(arguments.seeds)
        if kind != "throttle" or groups[seed]
    ]
    _start_all(runs, arguments.jobs)
    for group in groups:
        with suppress(OSError):
            Path(group).rmdir()
    return {
        (kind, has_marks): [
            judge_slow(one, has_marks=has_marks) for one in runs if one.spec["kind"] == kind
        ]
        for has_marks in (True, False)
        for kind in kinds
        # Nothing but marks tells of a checkpoint now and then.
        if has_marks or kind != "checkpoint"
    }


def measure_slow(arguments: argparse.Namespace, folder: Path) -> bool:
    """Run the slow jobs; print who was named, and how soon."""
    answers = run_slow(arguments, folder, EXTRA_S, SLOW)
    print(f"\nslow ranks, {EXTRA_S * 1000:.0f} ms of {STEP_S * 1000:.0f} ms")
    print(f"{'kind':12}{'marks':8}{'right':>8}{'wrong':>7}{'late or none':>14}  steps until named")
    totals: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for (kind, has_marks), own in answers.items():
        right, wrong = _count(own)
        totals[has_marks] += Counter(right=right, all=len(own))
        soon = " ".join(str(one.steps) for one in own)
        missed = len(own) - right - wrong
        word = "on" if has_marks else "off"
        print(f"{kind:12}{word:8}{right:>8}{wrong:>7}{missed:>14}  {soon}")
    for has_marks, total in totals.items():
        word = "on" if has_marks else "off"
        print(f"{'all':12}{word:8}{total['right']:>8} of {total['all']}")
    return all(total["right"] >= BAR_SHARE * total["all"] for total in totals.values())


def measure_curve(arguments: argparse.Namespace, folder: Path) -> bool:
    """Print which share of slow ranks is found, by how much they are slow, as a table."""
    # What a quota takes is no share of a step.
    kinds = [kind for kind in SLOW if kind != "throttle"]
    found = {}
    for share in SHARES:
        found[share] = run_slow(arguments, folder, round(share * STEP_S, 3), kinds)
        print(f"{share:.0%} done, load {os.getloadavg()[1]:.0f}", file=sys.stderr, flush=True)
    columns = list(found[SHARES[0]])
    names = [f"{kind}, marks" if has_marks else kind for kind, has_marks in columns]
    print(f"\n| slower by | {' | '.join(names)} | wrong |")
    print("|---" * (len(names) + 2) + "|")
    for share, answers in found.items():
        counts = [_count(answers[column]) for column in columns]
        cells = [
            f"{right} of {len(answers[column])}{_tell_steps(answers[column])}"
            for column, (right, _) in zip(columns, counts, strict=True)
        ]
        wrong = sum(one for _, one in counts)
        print(f"| {share:.0%}, {share * STEP_S * 1000:.0f} ms | {' | '.join(cells)} | {wrong} |")
    return True


def _count(answers: Sequence[Answer]) -> tuple[int, int]:
    """Count those that were right in time, and the wrong ones."""
    return sum(map(_is_in_time, answers)), sum(one.is_wrong for one in answers)


def _tell_steps(answers: Sequence[Answer]) -> str:
    steps = sorted(one.steps for one in answers if one.steps is not None and _is_in_time(one))
    if not steps:
        return ""
    return f" ({steps[0]} to {steps[-1]})" if steps[0] < steps[-1] else f" ({steps[0]})"


def measure_quiet(arguments: argparse.Namespace, folder: Path) -> bool:
    """Run healthy jobs; print in how many windows somebody is blamed."""
    runs_each = 1 if arguments.quick else 2
    # A window more each: with uneven inputs, some ranks have fewer steps.
    steps = WINDOW * (1 + max(2, -(-arguments.windows // (runs_each * len(QUIET))))) + 1
    runs = [
        Run(
            {"kind": kind, "culprit": -1, "onset": 0, "steps": steps, "step_s": STEP_S / 3,
             "extra_s": 0, "seed": seed},
            folder / f"{kind}-{seed}",
        )
        for kind in QUIET
        for seed in range(runs_each)
    ]  # fmt: skip
    _start_all(runs, arguments.jobs)
    print(f"\nhealthy jobs, windows of {WINDOW} steps")
    windows, alarms = 0, 0
    for run in runs:
        found = list(list_windows(run))
        wrong = [f"{one.code}: {one.summary}" for one in found if one is not None]
        wrong += [f"while it ran: {one}" for one in run.list_alarms()]
        windows, alarms = windows + len(found), alarms + len(wrong)
        print(f"{run.folder.name:16}{len(found):>6} windows{len(wrong):>4} alarms")
        for one in wrong:
            print(f"    {one}")
    print(f"all: {windows} windows of {len(runs)} runs, {alarms} alarms")
    is_quiet = judge_resampled(runs, arguments.resampled)
    return is_quiet and not alarms and windows >= arguments.windows


def judge_resampled(runs: list[Run], count: int) -> bool:
    """Judge windows that are put together of blocks of healthy runs; print the alarms."""
    made, wrong = 0, []
    sources = [random.Random(f"windows {run.folder.name}") for run in runs]
    evidence = [run.read() for run in runs]
    for place in range(MAX_TRIES * count):
        if made == count:
            break
        number = place % len(runs)
        exchanges = runs[number].spec["kind"] not in WITH_ROLES
        window = draw_window(evidence[number], sources[number], exchanges=exchanges)
        if window is not None:
            made += 1
            found = blame(window)
            wrong += [(runs[number].folder.name, found)] if found is not None else []
    print(f"resampled: {made} windows of {len(runs)} runs, {len(wrong)} alarms")
    for name, found in wrong:
        print(f"    {name}: {found.code}: {found.summary}")
    return not wrong and made == count


def _start_all(runs: list[Run], jobs: int) -> None:
    with ThreadPoolExecutor(jobs) as pool:
        for run, problem in zip(runs, pool.map(Run.start, runs), strict=True):
            if problem:
                sys.exit(f"{run.folder.name} failed: {problem}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--resampled", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2, help="how many run at the same time")
    parser.add_argument("--quick", action="store_true", help="one seed, and few windows")
    parser.add_argument("--keep", type=Path, help="leave the evidence there")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--curve", action="store_true", help="slow by 5, 10, 20, 50 %% of a step")
    alone.add_argument("--links", action="store_true", help="run the jobs on hosts alone")
    alone.add_argument(
        "--windows", type=int, nargs="?", const=WINDOWS, help="run the healthy jobs alone"
    )
    arguments = parser.parse_args()
    measures = _choose(arguments)
    arguments.windows = arguments.windows or WINDOWS
    if arguments.quick:
        arguments.seeds, arguments.windows, arguments.resampled = 1, 14, 14
    np.set_printoptions(suppress=True)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="whystuck-slow-"))
    try:
        are_met = [measure(arguments, folder) for measure in measures]
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"load at the end: {os.getloadavg()[1]:.0f}")
    return 0 if all(are_met) or arguments.quick else 1


def _choose(arguments: argparse.Namespace) -> Sequence[Callable[[argparse.Namespace, Path], bool]]:
    if arguments.curve:
        return (measure_curve,)
    if arguments.links:
        return (measure_links,)
    if arguments.windows:
        return (measure_quiet,)
    return measure_slow, measure_links, measure_quiet


if __name__ == "__main__":
    sys.exit(main())
