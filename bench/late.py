"""Whether the rank is named that makes every step late, and nobody else ever.

    python bench/late.py [--ranks 2,4,8] [--seeds 3] [--steps 60] [--quick] [--keep DIR]

Jobs made of sleeps run under ``whystuck run``. In some, one rank is 15, 30 or 80 ms late in each
step of 1 to 4 collectives, plain or DDP. In others nobody is: healthy ones, jitter, random work,
turns, a slow start, logs, checkpoints and evaluations of rank 0, accumulation, uneven pipelines and
uneven inputs under ``Join``. The seed decides the rank, the place of the sleep, the work beside it,
and whether the ops come from one line. All jobs of a seed run in one process a rank, each in a
group of its own (`late_job.py`), and each is diagnosed by its ops alone.

With 2 and 4 ranks, 95 % of the late ranks must be named; with 8, which few machines have cores for,
they may be missed. A wrong name, an alarm without a late rank, and ``healthy`` beside ranks that
wait for a third of the time are failures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Report, Verdict
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Collectives
from whystuck.evidence.ops.log import Ops
from whystuck.pipeline import read_evidence

Case = dict[str, Any]
T = TypeVar("T", Ops, Collectives)

JOB = Path(__file__).with_name("late_job.py")
DELAYS_MS = (15, 30, 80)
OPS = (1, 2, 3, 4)
QUIET = (
    "healthy", "jitter", "imbalance", "heavy", "turns", "slow-start", "log", "save", "evaluation",
    "accumulation", "pipeline", "join",
)  # fmt: skip
ONLY_PLAIN, ONLY_DDP = {"pipeline"}, {"join"}
MIN_SHARE, LONG_WAIT = 0.95, 1 / 3
SMALL = 4
RIGHT, SILENT, WRONG = "right", "silent", "wrong"


@dataclass(frozen=True)
class Result:
    """What was said of one job."""

    ranks: int
    case: Case
    answer: str
    named: list[int]
    verdict: str
    wait_share: float

    @property
    def is_called_healthy(self) -> bool:
        """Whether it is called healthy although ranks wait for long."""
        return self.verdict == Verdict.HEALTHY and self.wait_share >= LONG_WAIT


def list_cases(world: int, seed: int, steps: int, *, quick: bool) -> list[Case]:
    """List the jobs of one seed."""
    draw = random.Random(f"{world}-{seed}")
    delays, kinds = (DELAYS_MS, QUIET) if not quick else ((30,), QUIET[:3])
    wanted = [("late", ops, delay, ddp) for ops in OPS for delay in delays for ddp in (False, True)]
    wanted += [(kind, draw.choice(OPS), 0, False) for kind in kinds if kind not in ONLY_DDP]
    wanted += [(kind, draw.choice(OPS), 0, True) for kind in kinds if kind not in ONLY_PLAIN]
    return [
        {
            "name": f"{kind} {delay} ms, {ops} ops, {'ddp' if ddp else 'plain'}",
            "kind": kind,
            "ops": ops,
            "delay_ms": delay,
            "ddp": ddp,
            "late": draw.randrange(world) if kind == "late" else -1,
            "base_ms": draw.choice((15, 30, 45)),
            "lines": draw.random() < 0.5,
            "between_ms": draw.choice((0, 0, 3)),
            "where": draw.choice(("input", "forward", "backward")),
            "steps": steps,
            "seed": draw.randrange(10**6),
        }
        for kind, ops, delay, ddp in wanted
    ]


def run_jobs(folder: Path, world: int, cases: list[Case]) -> None:
    """Run jobs one after the other, and keep what was recorded of them in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "whystuck", "run", "--ops-buffer", "65536"]
    command += ["--evidence", str(folder / "evidence"), "--", "torchrun", "--standalone"]
    command += ["--nproc-per-node", str(world), str(JOB)]
    command += [str(folder / "cases.json"), str(folder / "groups.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": path}
    with (folder / "output.log").open("wb") as output:
        subprocess.run(command, env=environment, stdout=output, stderr=output, check=True)


def judge_jobs(folder: Path, world: int) -> Iterator[Result]:
    """Diagnose each job of a folder by its own ops."""
    cases = json.loads((folder / "cases.json").read_bytes())
    groups = json.loads((folder / "groups.json").read_bytes())
    evidence = read_evidence(folder / "evidence")
    for case in cases:
        report = diagnose(pick_group(evidence, groups[case["name"]]))
        yield judge(world, case, report)


def judge(world: int, case: Case, report: Report) -> Result:
    """Compare a report with the truth: a late rank, or nobody."""
    blamed = [item.culprits.ranks for item in report.findings if item.severity != "note"]
    named = sorted({rank for ranks in blamed for rank in ranks})
    truth = [case["late"]] if case["kind"] == "late" else []
    answer = RIGHT if named == truth and bool(blamed) == bool(truth) else WRONG
    if truth and not blamed:
        answer = SILENT
    communication = report.communication
    wait = max(communication.exposed_most, communication.exposed_share)
    return Result(world, case, answer, named, report.verdict, wait)


def pick_group(evidence: Evidence, name: str) -> Evidence:
    """Leave the ops of one group only."""
    ops, table = evidence.ops, evidence.collectives
    in_ops = np.array([team.name == name for team in ops.teams] or [False])[ops.team]
    in_table = np.array([group.name == name for group in table.groups] or [False])[table.group]
    return replace(
        evidence,
        ops=pick_rows(ops, in_ops & (ops.team >= 0)),
        collectives=pick_rows(table, in_table),
    )


def pick_rows(table: T, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> T:
    """Leave some rows of a table."""
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    return replace(
        table,
        **{
            name: column[chosen]
            for name, column in columns.items()
            if isinstance(column, np.ndarray) and len(column) == len(chosen)
        },
    )


def print_table(results: list[Result]) -> None:
    """Print how many of each kind were told right."""
    print(f"{'ranks':>5} {'job':12} {'ops':>3} {'jobs':>5} {'right':>6} {'silent':>6} {'wrong':>6}")
    rows: dict[tuple[int, str, str], Counter[str]] = {}
    for one in results:
        ops = str(one.case["ops"]) if one.case["kind"] == "late" else ""
        rows.setdefault((one.ranks, one.case["kind"], ops), Counter())[one.answer] += 1
    for (ranks, kind, ops), counts in rows.items():
        numbers = [counts.total(), *(counts[answer] for answer in (RIGHT, SILENT, WRONG))]
        print(f"{ranks:5} {kind:12} {ops:>3} " + " ".join(f"{number:6}" for number in numbers)[1:])


def is_met(results: list[Result]) -> bool:
    """Print what is not as it must be, and return whether all is."""
    for one in results:
        if one.answer != RIGHT or one.is_called_healthy:
            print(
                f"{one.ranks} ranks, {one.case['name']}: {one.answer}, verdict {one.verdict}, "
                f"named {one.named}, late {one.case['late']}, waits {one.wait_share:.0%}"
            )
    late = [one for one in results if one.case["kind"] == "late" and one.ranks <= SMALL]
    share = sum(one.answer == RIGHT for one in late) / max(1, len(late))
    wrong = sum(one.answer == WRONG for one in results)
    healthy = sum(one.is_called_healthy for one in results)
    print(
        f"{share:.1%} of {len(late)} late ranks named with 2 and 4 ranks; {wrong} wrong of "
        f"{len(results)} jobs; {healthy} called healthy beside waits of a third"
    )
    return share >= MIN_SHARE and not wrong and not healthy


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", type=Path, help="keep the evidence here; judge what is there")
    options = parser.parse_args()
    worlds = [int(text) for text in options.ranks.split(",")]
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for world in worlds:
                folder = root / f"{world}-{seed}"
                if not (folder / "groups.json").exists():
                    begin, load = time.monotonic(), os.getloadavg()[0]
                    cases = list_cases(world, seed, options.steps, quick=options.quick)
                    run_jobs(folder, world, cases)
                    print(
                        f"{world} ranks, seed {seed}: {len(cases)} jobs in "
                        f"{time.monotonic() - begin:.0f} s, load {load:.1f} to "
                        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
                        flush=True,
                    )
                results += judge_jobs(folder, world)
    print_table(results)
    return 0 if is_met(results) else 1


if __name__ == "__main__":
    sys.exit(main())
