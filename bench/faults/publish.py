"""Writes ``docs/benchmark.md`` from the results of one or more runs.

    python bench/faults/publish.py RESULTS.json [RESULTS.json ...] > docs/benchmark.md

Failures are published as they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

INTRO = """# The fault benchmark

Real jobs of four ranks, with one fault injected in each, run under `whystuck run`.
`make bench-faults` runs all of them; `bench/faults/README.md` describes how they are made and
judged. The seed moves the rank, the step, the amount, and the shape of the script: plain
collectives, DDP or FSDP2.
"""
COLUMNS = ("case", "seed", "shape", "truth", "said", "rank", "line", "stall to verdict")
MARKS = {None: "", True: "right", False: "**wrong**"}


def describe_run(results: dict[str, Any]) -> str:
    """Return a line on one run: commit, limit and scores."""
    limit = results["stall_after"]
    scores = ", ".join(
        f"{score['name']} {score['value']:g}{'' if score['met'] else ' (**missed**)'}"
        for score in results["scores"]
    )
    return (
        f"- commit `{results['commit']}`, torch {results['torch']}, 2 cores, "
        f"`--stall-after {limit}`: {scores}"
    )


def describe_outcome(outcome: dict[str, Any]) -> tuple[str, ...]:
    """Return one row of the table."""
    said = outcome["got"] if outcome["got"] != "-" else outcome["verdict"]
    bad = outcome["wrong_rank"] or outcome["false_alarm"] or outcome["name_ok"] is False
    seconds = outcome["stall_to_verdict"]
    return (
        outcome["case"],
        str(outcome["seed"]),
        outcome["shape"],
        outcome["expected"],
        f"**{said}**" if bad else said,
        MARKS[outcome["rank_ok"]],
        MARKS[outcome["line_ok"]],
        "" if seconds is None else f"{seconds:.1f} s",
    )


def render_page(runs: Iterable[dict[str, Any]]) -> str:
    """Return the page."""
    runs = list(runs)
    rows = [describe_outcome(outcome) for results in runs for outcome in results["runs"]]
    lines = [INTRO, *map(describe_run, runs), "", f"| {' | '.join(COLUMNS)} |"]
    lines += ["|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in sorted(rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_page(json.loads(Path(name).read_text()) for name in sys.argv[1:]))
