"""How many verdicts on dumps of hosts that run ahead are right, by kind of fault.

Jobs are simulated (`tests/diagnose/queue_cases.py`), each with one fault or none, and their dumps
judged. Prints a table; exits with 1 when an innocent rank was named for `certain` or `likely`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.diagnose.queue_cases import FAULTS, OUTCOMES, WRONG, try_case


def run(task: tuple[str, int]) -> tuple[str, int, str, str]:
    """Judge one case: its kind, seed, outcome and what was said."""
    kind, seed = task
    with tempfile.TemporaryDirectory() as folder:
        outcome, report, case = try_case(kind, seed, Path(folder))
    said = "; ".join(
        f"{item.code} {item.confidence.value} {item.culprits.ranks}" for item in report.findings
    )
    job = case.job
    form = (
        f"world {len(job.programs)} groups {len(job.groups)} ahead {job.ahead} "
        f"{'streams ' if job.streams else ''}{'timing ' if job.timing else ''}"
        f"{'frames ' if job.frames else ''}{'active ' if job.active_only else ''}ring {job.ring}"
    )
    truth = f"truth {'/'.join(case.codes)} {sorted(case.ranks)}"
    return kind, seed, outcome, f"{truth}: {report.verdict.value} {said or '-'} ({form})"


def main() -> int:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", action="append", choices=list(FAULTS), help="only this kind")
    parser.add_argument("--show", action="append", default=[], help="list cases of an outcome")
    args = parser.parse_args()
    kinds = args.kind or list(FAULTS)
    tasks = [(kind, args.first + seed) for kind in kinds for seed in range(args.cases)]
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(run, tasks, chunksize=4))
    print(f"{'fault':<14}" + "".join(f"{outcome:>17}" for outcome in OUTCOMES))
    for kind in kinds:
        counts = Counter(outcome for one, _, outcome, _ in results if one == kind)
        print(f"{kind:<14}" + "".join(f"{counts[outcome]:>17}" for outcome in OUTCOMES))
    for kind, seed, outcome, text in results:
        if outcome in args.show:
            print(f"{kind} {seed}: {outcome}: {text}")
    return int(any(outcome == WRONG for _, _, outcome, _ in results))


if __name__ == "__main__":
    sys.exit(main())
