"""How many verdicts are right when the dumps of some ranks are missing, the culprit's among them.

Jobs with tensor, data and pipeline groups are simulated (`tests/diagnose/missing_cases.py`), each
with one fault, and the dumps of a share of the ranks are removed. Prints a table by share; exits
with 1 when an innocent rank was named for more than possible, a missing one for certain, or
anybody who is there for one who is missing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.diagnose.missing_cases import (
    FAULTS,
    LARGE,
    LISTED,
    OUTCOMES,
    RIGHT,
    SMALL,
    WRONG,
    WRONG_UNSURE,
    Shape,
    diagnose_rest,
    judge,
    list_first,
    make_case,
    write_case,
)

from whystuck.evidence.ranks import format_ranks

# What is missing, and whether the dump of the culprit is there all the same.
SHARES = ((0.0, False), (0.01, False), (0.1, False), (0.5, False), (0.1, True))
Result = tuple[str, int, str, str, int, str]


def run(task: tuple[str, int, Shape]) -> list[Result]:
    """Judge one job with each share of its ranks missing."""
    kind, seed, shape = task
    case = make_case(kind, shape, seed)
    job, results = case.job, []
    form = (
        f"ahead {job.ahead} {'streams ' if job.streams else ''}{'timing ' if job.timing else ''}"
        f"{'frames ' if job.frames else ''}{'active ' if job.active_only else ''}ring {job.ring}"
    )
    with tempfile.TemporaryDirectory() as folder:
        files = write_case(case, Path(folder))
        for share, spare in SHARES:
            missing = case.choose_missing(share, seed, spare=spare)
            with tempfile.TemporaryDirectory() as rest:
                report = diagnose_rest(files, missing, Path(rest))
            first = list_first(report)
            named = {rank for item in report.findings for rank in item.culprits.ranks}
            said = "; ".join(
                f"{item.code} {item.confidence.value} {format_ranks(set(item.culprits.ranks))}"
                for item in report.findings
            )
            text = (
                f"truth {case.codes} {case.culprit}: {report.verdict.value} {said or '-'} "
                f"first {format_ranks(set(first))} ({form})"
            )
            asked = len(named) or len(first)
            label = _name_share(share, spare=spare)
            results.append((kind, seed, label, judge(case, missing, report), asked, text))
    return results


def main() -> int:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=3, help="jobs of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", action="append", choices=list(FAULTS), help="only this kind")
    parser.add_argument("--quick", action="store_true", help="64 ranks in place of 1,024")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--show", action="append", default=[], help="list cases of an outcome")
    args = parser.parse_args()
    shape = SMALL if args.quick else LARGE
    kinds = args.kind or list(FAULTS)
    tasks = [(kind, args.first + seed, shape) for kind in kinds for seed in range(args.cases)]
    with ProcessPoolExecutor(args.jobs) as pool:
        results = [one for found in pool.map(run, tasks) for one in found]
    ranks = shape[0] * shape[1] * shape[2]
    print(f"{ranks} ranks, {len(tasks)} jobs; asked: ranks to look at in the median")
    print(f"{'missing':<18}" + "".join(f"{one:>15}" for one in (*OUTCOMES, "asked")))
    is_bad = any(one[3] == WRONG for one in results)
    for share, spare in SHARES:
        name = _name_share(share, spare=spare)
        chosen = [one for one in results if one[2] == name]
        is_bad |= bool(share) and not spare and any(one[3] == WRONG_UNSURE for one in chosen)
        _print_line(name, chosen)
    for kind in kinds:
        _print_line(kind, [one for one in results if one[0] == kind and one[2] != "0%"])
    for kind, seed, label, outcome, _, text in results:
        if outcome in (WRONG, *args.show):
            print(f"{outcome}: {kind} {seed}, {label} missing: {text}")
    return int(is_bad)


def _name_share(share: float, *, spare: bool) -> str:
    return f"{share:.0%}, but not it" if spare else f"{share:.0%}"


def _print_line(name: str, results: list[Result]) -> None:
    counts = Counter(one[3] for one in results)
    sizes = [one[4] for one in results if one[3] in (RIGHT, LISTED)]
    cells = [*(counts[outcome] for outcome in OUTCOMES), round(median(sizes)) if sizes else "-"]
    print(f"{name:<18}" + "".join(f"{cell:>15}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
