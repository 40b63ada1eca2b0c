"""The fault benchmark: real jobs with known faults, run under `whystuck run` and judged.

python bench/faults/run.py [--seeds 0,1,2] [--case NAME]... [--quick] [--stall-after auto|S]
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# A script's own folder is on the path, the repository is not.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.faults.cases import QUICK, ROOT, Case, find_lack, find_truth, load_cases
from bench.faults.execute import Tools, find_tool, run_bare, run_case
from bench.faults.judge import Outcome, judge
from bench.faults.score import Score, score, score_bare
from bench.faults.table import render_notes, render_scores, render_table

RESULTS = ROOT / "results"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the fault benchmark.")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated (default 0,1,2)")
    parser.add_argument("--case", action="append", default=[], help="one case; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a few cases, one seed each")
    parser.add_argument(
        "--bare", action="store_true", help="start the jobs without whystuck, and snapshot them"
    )
    parser.add_argument("--stall-after", default="auto", help="auto or seconds (default auto)")
    parser.add_argument("--json", type=Path, help="default: results.json where evidence is kept")
    parser.add_argument("--whystuck", help="the command to test (default: beside this Python)")
    parser.add_argument("--torchrun", help="the launcher (default: beside this Python)")
    parser.add_argument("--results", type=Path, help="where evidence is kept")
    parser.add_argument(
        "--interrupt",
        action="store_true",
        help="end stuck jobs with Ctrl-C once they are reported, then run another command",
    )
    parser.add_argument("--list", action="store_true", help="list the cases and their truth")
    options = parser.parse_args(arguments)
    options.results = (options.results or RESULTS / ("bare" if options.bare else "")).resolve()
    options.json = options.json or (options.results if options.bare else RESULTS) / "results.json"
    return options


def select_runs(options: argparse.Namespace) -> list[tuple[Case, int]]:
    if options.quick:
        return [(load_cases([name])[0], seed) for name, seed in QUICK]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    return [(case, seed) for case in load_cases(options.case, bare=options.bare) for seed in seeds]


def list_runs(runs: list[tuple[Case, int]]) -> None:
    for case, seed in runs:
        truth = find_truth(case, seed)
        ranks = ",".join(map(str, sorted(truth.ranks))) or "-"
        lines = " ".join(f"{name}:{line}" for name, line in sorted(truth.lines))
        expected = case.code or "healthy"
        print(f"{case.name:<22} {seed} {truth.plan.shape:<6}{expected:<8} rank {ranks:<3} {lines}")


def run_all(
    runs: list[tuple[Case, int]], tools: Tools, results: Path, *, bare: bool
) -> list[Outcome]:
    outcomes = []
    for number, (case, seed) in enumerate(runs, 1):
        label = f"[{number}/{len(runs)}] {case.name} seed {seed}"
        print(label, end=" ", file=sys.stderr, flush=True)
        lack = find_lack(case)
        if lack is not None:
            print(f"skipped: {lack}", file=sys.stderr, flush=True)
            continue
        folder = results / f"{case.name}-{seed}"
        run = (run_bare if bare else run_case)(case, seed, tools, folder)
        outcome = judge(case, seed, find_truth(case, seed), run, folder)
        notes = "; ".join(render_notes(outcome))
        print(f"{outcome.got} in {outcome.seconds:.0f} s {notes}", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    return outcomes


def write_json(path: Path, outcomes: list[Outcome], scores: list[Score], tools: Tools) -> None:
    document = {
        "commit": read_commit(),
        "torch": read_version("torch"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "stall_after": tools.stall_after,
        "scores": [
            {"name": one.name, "value": one.value, "target": one.target, "met": one.met}
            for one in scores
        ],
        "runs": [one.as_json() for one in outcomes],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def read_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> int:
    # A shell without job control has its background jobs ignore this, and the jobs of theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = parse_arguments()
    try:
        runs = select_runs(options)
        if options.list:
            list_runs(runs)
            return 0
        tools = Tools(
            options.whystuck or find_tool("whystuck"),
            options.torchrun or find_tool("torchrun"),
            options.stall_after,
            options.interrupt,
        )
    except (KeyError, ValueError, FileNotFoundError) as error:
        print(f"error: {error.args[0]}", file=sys.stderr)
        return 2
    outcomes = run_all(runs, tools, options.results, bare=options.bare)
    scores = (
        score_bare(outcomes)
        if options.bare
        else score(outcomes, default_limit=tools.stall_after == "auto")
    )
    write_json(options.json, outcomes, scores, tools)
    print(render_table(outcomes))
    print()
    print(render_scores(scores))
    # On a shared machine a time is a figure to look at; the quick run, which CI uses, fails on
    # wrong answers only.
    return 0 if all(one.met or (options.quick and one.unit == " s") for one in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
