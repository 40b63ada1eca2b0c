"""How often texts that people pasted are judged as an expert judges them, by `logs` and `diagnose`.

The texts are not part of the repository: WHYSTUCK_TEST_DATA is the folder that holds `field_logs`.
Its `names.csv` tells for each text which findings are right (`names`), which ranks must be named
(`ranks`), which must not (`innocent`), and what is true but shallow (`shallow`). A verdict that
leaves it open is the name `inconclusive`, one of a job that is well is `healthy`. Exit code 1 when
a bar is missed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whystuck.cli import main as run_whystuck

COMMANDS = ("logs", "diagnose")
LEAST_RIGHT = 0.9
KINDS = ("right", "shallow", "missed", "wrong rank", "exit 2")
# True of every job that stopped moving, and no cause.
SHALLOW = frozenset({"collective-timeout", "peer-lost", "process-killed"})
_UNUSABLE = 2


@dataclass(frozen=True)
class Label:
    """What is right to say of a text."""

    number: int
    path: Path
    is_decidable: bool
    names: frozenset[str]
    ranks: frozenset[int]
    innocent: frozenset[int]
    shallow: frozenset[str]


@dataclass(frozen=True)
class Score:
    """What a command said of a text: one of `KINDS`, and in words."""

    label: Label
    command: str
    kind: str
    said: str


def read_labels(folder: Path) -> Iterator[Label]:
    """Read what is right, in the order of `names.csv`."""
    with (folder / "names.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            number = int(row["n"])
            yield Label(
                number,
                folder / f"{number:02}.txt",
                row["decidable"] == "yes",
                _split(row["names"], "|"),
                frozenset(map(int, _split(row["ranks"], ","))),
                frozenset(map(int, _split(row["innocent"], ","))),
                SHALLOW | _split(row["shallow"] or "", "|"),
            )


def _split(text: str, mark: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(mark) if part.strip())


def score(job: tuple[Label, str]) -> Score:
    """Run a command on a text, and compare its first finding with what is right."""
    label, command = job
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = run_whystuck([command, str(label.path), "--format", "json"])
    if code == _UNUSABLE:
        return Score(label, command, "exit 2", out.getvalue().strip().partition("\n")[0])
    report = json.loads(out.getvalue())
    return Score(label, command, _judge(label, report), _describe(report))


def _judge(label: Label, report: dict[str, Any]) -> str:
    first = next((one for one in report["findings"] if one["severity"] != "note"), None)
    first = first or next(iter(report["findings"]), None)
    named = set(first["culprits"]["ranks"]) if first else set()
    if named & label.innocent:
        return "wrong rank"
    said = {first["name"]} if first else set()
    said |= {report["verdict"]} & {"inconclusive", "healthy"}
    if said & label.names:
        return "right" if label.ranks <= named else "shallow"
    return "shallow" if said & label.shallow else "missed"


def _describe(report: dict[str, Any]) -> str:
    told = [
        f"{one['name']} {one['culprits']['ranks'] or ''}{one['culprits']['nodes'] or ''}"
        f" ({one['severity']}, {one['confidence']})"
        for one in report["findings"][:3]
    ]
    return f"{report['verdict']}: " + ("; ".join(told) or "nothing")


def print_scores(scores: list[Score], *, shows_all: bool) -> None:
    """Print what is not right, and the table."""
    for one in scores:
        if shows_all or one.kind != "right":
            want = "|".join(sorted(one.label.names))
            who = f" {sorted(one.label.ranks)}" if one.label.ranks else ""
            open_ = "" if one.label.is_decidable else " (open)"
            print(f"{one.label.number:3} {one.command:9}{one.kind:11}{one.said}")
            print(f"{'':24}want {want}{who}{open_}")
    print(f"\n{'':12}" + "".join(f"{kind:>12}" for kind in KINDS))
    for command in sorted({one.command for one in scores}):
        for is_decidable in (True, False):
            rows = [one for one in scores if one.command == command]
            kinds = Counter(one.kind for one in rows if one.label.is_decidable == is_decidable)
            name = command if is_decidable else "  open"
            total = kinds.total()
            share = f"{kinds['right'] / total:10.0%} of {total}" if total else ""
            print(f"{name:12}" + "".join(f"{kinds[kind]:12}" for kind in KINDS) + share)


def find_folder() -> Path:
    """Find the folder of the texts."""
    named = os.environ.get("WHYSTUCK_TEST_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (folder / "field_logs" / "names.csv").is_file():
        raise SystemExit("error: no pasted texts\nhint: set WHYSTUCK_TEST_DATA to their folder")
    return folder / "field_logs"


def main() -> int:
    """Score the texts; return 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="texts; all when left out")
    parser.add_argument("--folder", type=Path, help="texts with a names.csv, in place of ours")
    parser.add_argument("--command", choices=COMMANDS, help="both when left out")
    parser.add_argument("--all", action="store_true", help="print what is right too")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    labels = [
        label
        for label in read_labels(options.folder or find_folder())
        if not options.numbers or label.number in options.numbers
    ]
    commands = [options.command] if options.command else list(COMMANDS)
    jobs = [(label, command) for label in labels for command in commands]
    with ProcessPoolExecutor(options.processes) as pool:
        scores = list(pool.map(score, jobs))
    print_scores(scores, shows_all=options.all)
    counted = [one for one in scores if one.label.is_decidable]
    right = sum(one.kind == "right" for one in counted)
    is_clean = not any(one.kind in ("wrong rank", "exit 2") for one in scores)
    return 0 if is_clean and right >= LEAST_RIGHT * len(counted) else 1


if __name__ == "__main__":
    sys.exit(main())
