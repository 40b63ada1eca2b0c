"""How often the first cause is found in the corpus of failing logs, plain and padded.

Prints a line for each answer that is wrong, and a table. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.logs.cases import CORPUS, REPORTS, Case, all_cases
from tests.logs.pad import Size
from tests.logs.scoring import FULL, QUICK, Score, count, score_case

LEAST_RIGHT = 0.9
MOST_DECOYS = 0.05


def _score(job: tuple[Case, Size | None]) -> Score:
    return score_case(*job)


def _print_table(scores: list[Score]) -> None:
    sizes = list(dict.fromkeys(score.size for score in scores))
    heads = list(count([]))
    print(f"{'':28}" + "".join(f"{head:>13}" for head in heads))
    for size in [*sizes, None]:
        chosen = [score for score in scores if size is None or score.size == size]
        name = "all" if size is None else size or "plain"
        print(f"{name:28}" + "".join(f"{value:13}" for value in count(chosen).values()))


def main() -> int:
    """Score the corpus; return 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="cases whose names begin so; all when left out")
    parser.add_argument("--reports", action="store_true", help="score what people report instead")
    parser.add_argument("--size", choices=["plain", "quick", "full"], default="plain")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the scores here")
    options = parser.parse_args()
    sizes = {"plain": (), "quick": QUICK, "full": (*QUICK, *FULL)}[options.size]
    cases = [
        case
        for case in all_cases(REPORTS if options.reports else CORPUS)
        if not options.names or any(case.name.startswith(name) for name in options.names)
    ]
    began = time.monotonic()
    jobs = [(case, size) for size in (None, *sizes) for case in cases]
    with ProcessPoolExecutor(options.processes) as pool:
        scores = list(pool.map(_score, jobs))
    for score in scores:
        if not score.is_right or score.is_wrong_rank or score.is_cited is False:
            kind = "not cited" if score.is_right else "WRONG"
            print(f"{kind}: {score.name} ({score.size or 'plain'}): want {score.wanted}")
            print(f"    got {score.got}")
    _print_table(scores)
    print(f"{time.monotonic() - began:.0f} s")
    if options.json:
        rows = [{name: getattr(score, name) for name in Score.__annotations__} for score in scores]
        options.json.write_text(json.dumps(rows, indent=1))
    total = count(scores)
    is_good = total["right"] >= LEAST_RIGHT * total["cases"]
    return 0 if is_good and total["decoy"] <= MOST_DECOYS * total["cases"] else 1


if __name__ == "__main__":
    sys.exit(main())
