"""Whether kept incidents still give an honest report when parts of their evidence are missing.

Each incident is diagnosed again and again: without one file, with one cut in half, without all
files of a kind, without one key of a record or of all entries of a dump, and without the folder of
one rank. Prints a table; exits with 1 when a report is missing, when whystuck itself failed at a
part (E902), when "healthy" is said, or when a rank that the whole evidence does not name is named
for `certain`.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.parse.dumps.builders import as_pickle

from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Confidence, Finding, Report, Severity, Verdict
from whystuck.pipeline import diagnose_paths

_REPORTS = "report."
_NUMBER = re.compile(r"\d+")
SAME, LESS, UNSURE, WRONG_UNSURE, NOTHING, FAILED, HEALTHY, WRONG = (
    "same",
    "other code",
    "inconclusive",
    "wrong, unsure",
    "no evidence",
    "E902",
    "healthy",
    "WRONG",
)
OUTCOMES = (SAME, LESS, UNSURE, WRONG_UNSURE, NOTHING, FAILED, HEALTHY, WRONG)
_BAD = {FAILED, HEALTHY, WRONG}


class Deletion(NamedTuple):
    """One deletion: its kind, what is missing, and how it is taken from a copy of the incident."""

    kind: str
    what: str
    apply: Callable[[Path], None]


def list_deletions(incident: Path) -> Iterator[Deletion]:
    """List all single deletions of an incident."""
    files = [
        path.relative_to(incident)
        for path in sorted(incident.rglob("*"))
        if path.is_file() and not path.name.startswith(_REPORTS)
    ]
    for file in files:
        yield Deletion("file", str(file), partial(_remove, file))
        yield Deletion("half a file", str(file), partial(_cut, file))
    for rank in sorted(incident.glob("*/rank-*")):
        folder = rank.relative_to(incident)
        yield Deletion("rank", str(folder), partial(_remove, folder))
    for pattern in sorted({_NUMBER.sub("*", file.name) for file in files}):
        yield Deletion("table", pattern, partial(_remove_all, pattern))
    for name in sorted({file.name for file in files if file.suffix == ".json"}):
        for keys in _list_keys(incident, name):
            yield Deletion("key", f"{name}: {'.'.join(keys)}", partial(_drop, name, keys))
    for key in _list_dump_keys(incident):
        yield Deletion("column", f"fr: {key}", partial(_drop_of_dumps, key))
        yield Deletion("column alone", f"op logs, fr: {key}", partial(_drop_alone, key))


def _remove_all(pattern: str, root: Path) -> None:
    for path in list(root.rglob(pattern)):
        path.unlink()


def _drop_alone(key: str, root: Path) -> None:
    """Drop a column of the dumps where there are no op logs, which tell the same and more."""
    _remove_all("ops.ring*", root)
    _drop_of_dumps(key, root)


def _remove(path: Path, root: Path) -> None:
    if (root / path).is_dir():
        shutil.rmtree(root / path)
    else:
        (root / path).unlink()


def _cut(path: Path, root: Path) -> None:
    data = (root / path).read_bytes()
    (root / path).write_bytes(data[: len(data) // 2])


def _list_keys(incident: Path, name: str) -> list[tuple[str, ...]]:
    """List the paths of all keys in the files of a name; items of lists count as one."""
    found: dict[tuple[str, ...], None] = {}

    def walk(value: object, path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                found[(*path, key)] = None
                walk(item, (*path, key))
        elif isinstance(value, list):
            for item in value:
                walk(item, path)

    for path in incident.rglob(name):
        walk(json.loads(path.read_bytes()), ())
    return list(found)


def _drop(name: str, keys: tuple[str, ...], root: Path) -> None:
    def walk(value: object, rest: tuple[str, ...]) -> None:
        if isinstance(value, list):
            for item in value:
                walk(item, rest)
        elif isinstance(value, dict) and len(rest) == 1:
            value.pop(rest[0], None)
        elif isinstance(value, dict) and rest[0] in value:
            walk(value[rest[0]], rest[1:])

    for path in root.rglob(name):
        value = json.loads(path.read_bytes())
        walk(value, keys)
        path.write_text(json.dumps(value))


def _list_dump_keys(incident: Path) -> list[str]:
    keys: dict[str, None] = {}
    for path in incident.rglob("fr.pickle"):
        dump = pickle.loads(path.read_bytes())
        keys |= dict.fromkeys(dump)
        keys |= dict.fromkeys(f"entries.{key}" for entry in dump["entries"][:50] for key in entry)
    return list(keys)


def _drop_of_dumps(key: str, root: Path) -> None:
    for path in root.rglob("fr.pickle"):
        dump = pickle.loads(path.read_bytes())
        for part in dump["entries"] if key.startswith("entries.") else [dump]:
            part.pop(key.removeprefix("entries."), None)
        path.write_bytes(as_pickle(dump))


def judge(whole: Report, report: Report) -> str:
    """Compare the report on the rest with that on the whole evidence."""
    if any(item.code == "E902" for item in report.findings):
        return FAILED
    if report.verdict is Verdict.HEALTHY:
        return HEALTHY
    true = {rank for item in whole.findings for rank in item.culprits.ranks}
    named = [item for item in report.findings if item.severity is not Severity.NOTE]
    wrong = [item for item in named if set(item.culprits.ranks) - true]
    if wrong:
        is_sure = any(item.confidence is Confidence.CERTAIN for item in wrong)
        return WRONG if is_sure else WRONG_UNSURE
    if not named:
        return UNSURE
    return SAME if named[0].code == whole.findings[0].code else LESS


@cache
def _list(incident: Path) -> list[Deletion]:
    return list(list_deletions(incident))


@cache
def _diagnose_whole(incident: Path) -> Report:
    return diagnose_paths([incident])


def run(task: tuple[Path, int]) -> tuple[str, str, str, str]:
    """Apply one deletion to a copy; return its kind, what it is, the outcome, and what is said."""
    incident, number = task
    deletion, whole = _list(incident)[number], _diagnose_whole(incident)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / incident.name
        shutil.copytree(incident, copy)
        deletion.apply(copy)
        try:
            report = diagnose_paths([copy])
        except UsageError as error:
            return deletion.kind, deletion.what, NOTHING, str(error)
    return deletion.kind, deletion.what, judge(whole, report), "; ".join(_say(report.findings))


def _say(findings: Sequence[Finding]) -> Iterator[str]:
    for item in findings:
        yield (
            item.summary
            if item.code == "E902"
            else f"{item.code} {item.confidence.value} {item.culprits.ranks}"
        )


def main() -> int:
    """Run all deletions of all incidents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("incidents", nargs="+", type=Path, help="folders of incidents")
    parser.add_argument(
        "--show", action="append", default=[], help="list cases of an outcome or kind"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    args = parser.parse_args()
    is_bad = False
    for incident in args.incidents:
        tasks = [(incident, number) for number in range(len(_list(incident)))]
        with ProcessPoolExecutor(args.jobs) as pool:
            results = list(pool.map(run, tasks, chunksize=8))
        print(f"\n{incident}\n{'missing':<14}" + "".join(f"{one:>15}" for one in OUTCOMES))
        for kind in dict.fromkeys(kind for kind, *_ in results):
            counts = Counter(outcome for one, _, outcome, _ in results if one == kind)
            print(f"{kind:<14}" + "".join(f"{counts[outcome]:>15}" for outcome in OUTCOMES))
        for kind, what, outcome, said in results:
            is_bad |= outcome in _BAD
            if outcome in _BAD or {outcome, kind} & set(args.show):
                print(f"{outcome}: without {kind} {what}: {said or '-'}")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
