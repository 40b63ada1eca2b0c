"""Differential harness: each script bare and under ``whystuck run``, and what its caller sees.

``python -m bench.harm.run [--topic T]... [--case T/NAME]... [--agent off|on|both] [--quick]
[--no-wall]``
prints a line for each case that differs, and ends with 1 when one does that is not expected.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harm.cases import Case, load_cases
from bench.harm.execute import NotHereError, Seen, run_case

# Lines of whystuck's own on stderr; the rest must be the command's.
OWN = (b"whystuck: ", b"hint: ", b"evidence: ", b"report: ")
# What a report ends with. It stands between the lines of the command, which all must be there.
REPORT = b"verdict: "
QUICK = {
    "shells/exit-5",
    "shells/killed-by-term",
    "shells/bytes-of-all-kinds",
    "shells/both-in-one-file",
    "shells/own-umask",
    "signals/term-to-one",
    "signals/term-to-group",
    "signals/int-handled-with-0",
    "signals/nohup",
    "terminals/all-are-terminals",
    "terminals/ctrl-c",
    "descriptors/list-of-descriptors",
    "descriptors/all-closed",
    "descriptors/inherited-descriptor",
    "limits/few-files",
    "children/background-child-left",
    "children/orphans",
    "environments/variables",
    "environments/working-directory-deleted",
    "environments/rank-that-closes-everything",
    "training/fsdp",
    "interpreters/hooks-are-those-of-python",
    "interpreters/functions-in-classes",
    "interpreters/rank-at-a-terminal",
    "callers/nested",
    "ranks/timers-and-loops",
    "disks/full",
    "disks/frozen-from-the-start",
}  # fmt: skip


def main() -> int:
    """Run the cases that were asked for."""
    options = _parse()
    wanted = [case for case in load_cases() if _is_wanted(case, options)]
    differing, skipped = [], 0
    agents = {"off": [False], "on": [True], "both": [False, True]}[options.agent]
    for case in wanted:
        try:
            bare = run_case(case, whystuck=[])
            for agent in agents:
                differences = _try(case, bare, agent=agent)
                if options.no_wall:
                    differences = [one for one in differences if not one.startswith("wall")]
                if differences:
                    differing.append(case.id)
                state = "; ".join(differences) or "equal"
                print(f"{case.id:45} agent {'on ' if agent else 'off'}  {state}", flush=True)
        except NotHereError as error:
            skipped += 1
            print(f"{case.id:45} skipped: {error}", flush=True)
    print(f"{len(wanted)} cases, {len(differing)} differ, {skipped} skipped")
    return 1 if differing else 0


def _try(case: Case, bare: Seen, *, agent: bool) -> list[str]:
    """Run under whystuck; a wall time that differs on a busy machine is measured again.

    So is a script that differs from itself: a job of torch fails once in a while, bare as well.
    What counts is a difference from two bare runs that are alike.
    """
    whystuck = [sys.executable, "-m", "whystuck", "run"]
    whystuck += [*case.options, *([] if agent else ["--no-agent"])]
    differences: list[str] = []
    for _ in range(3):
        under = run_case(case, whystuck=[*whystuck, "--evidence", "{evidence}", "--"])
        differences = compare(case, bare, under)
        if _is_more_than_wall(differences):
            again = run_case(case, whystuck=[])
            differences = compare(case, again, under)
            unlike = compare(case, bare, again)
            bare = again
            if _is_more_than_wall(differences) and _is_more_than_wall(unlike):
                _show_unlike(case, unlike, again)
                continue
        if not differences or _is_more_than_wall(differences):
            break
    return differences


def _is_more_than_wall(differences: list[str]) -> bool:
    return any(not one.startswith("wall") for one in differences)


def _show_unlike(case: Case, unlike: list[str], bare: Seen) -> None:
    text = bare.stderr.decode(errors="replace")
    print(f"{case.id}: two bare runs differ: {'; '.join(unlike)}\n{text}", flush=True)


def compare(case: Case, bare: Seen, under: Seen) -> list[str]:
    """Return what differs, in words."""
    found = []
    pairs = {
        "stdout": (bare.stdout, _without_own(under.stdout) if case.terminal else under.stdout),
        "stderr": (bare.stderr, _without_own(under.stderr)),
        "code": (bare.code, under.code),
        "files": (bare.files, under.files),
        "children": (bare.children, under.children),
    }
    if case.join:
        pairs["stdout"] = (bare.stdout, _without_own(under.stdout))
    for name, pair in pairs.items():
        if case.only and name not in case.only:
            continue
        old, new = map(_sorted, pair) if case.sort else pair
        if not (old == new or _stand_in(new, old)):
            found.append(f"{name}: {_short(old)} became {_short(new)}")
    if under.wall_s - bare.wall_s > case.wall_slack_s:
        found.append(f"wall: {bare.wall_s:.1f} s became {under.wall_s:.1f} s")
    return found


def _without_own(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith(OWN))


def _sorted(value: object) -> object:
    return sorted(value.splitlines()) if isinstance(value, bytes) else value


def _stand_in(text: object, lines: object) -> bool:
    """Return whether all lines of the command stand, in their order, in a text with a report."""
    if not (isinstance(text, bytes) and isinstance(lines, bytes) and REPORT in text):
        return False
    if text.startswith(lines):
        return True  # the last of them may have no end
    rest = iter(text.split(b"\n"))
    return all(line in rest for line in lines.split(b"\n") if line)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:80]}…{text[-80:]}"


def _is_wanted(case: Case, options: argparse.Namespace) -> bool:
    if options.case or options.topic:
        return case.id in options.case or case.topic in options.topic
    return not options.quick or case.id in QUICK


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--topic", action="append", default=[])
    parser.add_argument("--agent", choices=["off", "on", "both"], default="off")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-wall", action="store_true", help="for machines that others use too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
