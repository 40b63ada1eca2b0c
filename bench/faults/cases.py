"""The cases: what each folder expects, and what is true for one seed."""

import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.faults import confine
from bench.faults._train.plan import SHAPES, Plan, make_plan

ROOT = Path(__file__).resolve().parent
WORLD = 4
MARKERS = ("# <- here", "# <- also")
QUICK = (
    ("h101-sleep", 0),
    ("h102-save-barrier", 2),
    ("h112-worker-lock", 1),
    ("h127-skip", 0),
    ("c204-raise", 1),
    ("healthy-ddp", 0),
)

Line = tuple[str, int]
# What holds for every snapshot: it ends with the code of its report.
_BARE = {"exit_codes": (0, 1, 3)}


@dataclass(frozen=True)
class Case:
    """One folder, as its `expect.toml` describes it."""

    name: str
    folder: Path
    summary: str
    code: str | None
    finding: str | None
    also_accepted: tuple[str, ...]
    verdicts: tuple[str, ...]
    ranks: str | tuple[int, ...]
    line: str
    decoys: tuple[str, ...]
    exit_codes: tuple[int, ...]
    on_stall: str
    stall_after: str | None
    alarm_is_false: bool
    min_seconds: float
    hard_limit: float
    shapes: tuple[str, ...]
    needs: str | None
    inspect: str | None
    command: tuple[str, ...]
    within: str | None
    memory_mib: int
    leaves_ranks: bool
    some_ranks: bool

    @property
    def healthy(self) -> bool:
        return self.code is None

    @property
    def timed(self) -> bool:
        """Whether the delay from the stall to the verdict is measured against the target."""
        return self.exit_codes == (124,)


@dataclass(frozen=True)
class Truth:
    """Who and where, for one seed."""

    plan: Plan
    ranks: frozenset[int]
    lines: frozenset[Line]


def load_cases(names: Iterable[str] = (), *, bare: bool = False) -> list[Case]:
    """The cases; with ``bare`` those that a snapshot is taken of, as it should see them."""
    tables = {
        path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.glob("*/expect.toml"))
    }
    known = {name: table for name, table in tables.items() if "bare" in table or not bare}
    chosen = list(names) or list(known)
    for name in chosen:
        if name not in known:
            raise KeyError(f"no case {name!r} in {ROOT}; cases: {', '.join(known)}")
    return [
        _make_case(name, known[name] | _BARE | known[name]["bare"] if bare else known[name])
        for name in chosen
    ]


def _make_case(name: str, table: dict[str, Any]) -> Case:
    ranks = table["ranks"]
    return Case(
        name=name,
        folder=ROOT / name,
        summary=table["summary"],
        code=table.get("code"),
        finding=table.get("name"),
        also_accepted=tuple(table.get("also_accepted", ())),
        verdicts=tuple(table["verdict"]),
        ranks=ranks if isinstance(ranks, str) else tuple(ranks),
        line=table["line"],
        decoys=tuple(table.get("decoys", ())),
        exit_codes=tuple(table["exit_codes"]),
        on_stall=table.get("on_stall", "kill"),
        stall_after=table.get("stall_after"),
        alarm_is_false=table.get("alarm_is_false", False),
        min_seconds=table.get("min_seconds", 0.0),
        hard_limit=table.get("hard_limit", 120.0),
        shapes=tuple(table.get("shapes", SHAPES)),
        needs=table.get("needs"),
        inspect=table.get("inspect"),
        command=tuple(table.get("command", ())),
        within=table.get("within"),
        memory_mib=table.get("memory_mib", 0),
        leaves_ranks=table.get("leaves_ranks", False),
        some_ranks=table.get("some_ranks", False),
    )


def find_lack(case: Case) -> str | None:
    """Tell why this machine cannot run a case; None when it can."""
    if case.within is not None:
        return confine.find_lack(case.within)
    if case.needs == "fuse":
        if not Path("/dev/fuse").exists():
            return "there is no /dev/fuse"
        return None if os.geteuid() == 0 else "mounting needs root"
    return None


def find_truth(case: Case, seed: int) -> Truth:
    plan = make_plan(case.name, seed, case.shapes, WORLD)
    return Truth(plan, _true_ranks(case, plan), _marked_lines(case.folder))


def _true_ranks(case: Case, plan: Plan) -> frozenset[int]:
    if not isinstance(case.ranks, str):
        return frozenset(case.ranks)
    named = {
        "culprit": {plan.culprit},
        "pair": {plan.culprit, (plan.culprit + 1) % WORLD},
        "all": set(range(WORLD)),
        "any": set(range(WORLD)),
        "none": set[int](),
    }
    return frozenset(named[case.ranks])


def _marked_lines(folder: Path) -> frozenset[Line]:
    return frozenset(
        (path.name, number)
        for path in folder.glob("*.py")
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if text.endswith(MARKERS)
    )
