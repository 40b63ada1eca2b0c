"""How the code is laid out, in figures: what a reader meets who opens it for the first time.

    python bench/structure.py [--list] [--check]

Measured from the imports and the lines of `src/whystuck`; `--list` names what is counted. With
`--check` it only looks for circles, arrows upwards, and imports in functions that need no such
place, and exits with 1 where there is one.

Entry: a package or a module right under `src/whystuck`. Arrow: one entry imports another. Circle:
modules that import each other in the end, imports in functions included, those for types apart.
Way of a dump: the modules that `whystuck diagnose` enters from dumps to the report, rules apart, in
the order of their first call. A stop is one of them that calls on into another one; what answers by
itself is looked up where it is called. So counted, the way that a reader followed by hand in the
tree of 642 modules has 62 stops (61 by hand), of 113 modules that are entered. It goes back up
where the next stop's package lies above. Layers are
those of import-linter in `pyproject.toml`; an arrow that does not go to a lower one runs upwards.
Import in a function: one that the import budget needs, for a reason that `LATE` gives.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

ROOT = Path(__file__).parents[1] / "src"
PACKAGE = "whystuck"
RULES = "whystuck.diagnose.rules"
SMALL_LINES, LONG_LINES = 80, 350
GOALS = {
    "entries": 18, "loose modules": 4, "arrows between entries": 55, "circles": 0,
    "arrows that run upwards": 0, "modules in one folder": 20, "of these, without a reason": 0,
    "stops of a dump": 35, "stops back up": 15, "modules of 350 lines and more": 25,
}  # fmt: skip
# Why modules import in functions: what starts with one of these names, for the reason behind it.
LATE = {
    "whystuck.cli.": "a command imports its stages when it runs: `whystuck --help` takes 0.1 s",
    "whystuck.agent.": "an agent has in memory what its configuration asks for, and no more",
    "whystuck.launch.incidents.": "what reports need is imported once the job has started",
    "whystuck.read.traces.locations": "what reads traces is a third of all modules",
    "whystuck.read.tree": "as above: only evidence with traces needs it",
    "whystuck.report": "each form of a report has an engine of its own: Jinja, rich",
    "whystuck.probe": "a process that is no rank, and a switch that is off, cost the job nothing",
}
# Runs in a child: prints each module of ours that is entered, in the order of the first call, and
# those that call on into another one. Code that a dataclass generates is no code that one reads.
WAY = """
import sys
from whystuck.cli import main
entered, stops, imports = {}, set(), [0]
def name_of(frame):
    name = frame.f_globals.get("__name__", "")
    return name if name.startswith("whystuck") and frame.f_code.co_filename[0] != "<" else ""
def enter(frame, event, _):
    if frame.f_code.co_name == "<module>":
        imports[0] += {"call": 1, "return": -1}.get(event, 0)
    elif event == "call" and not imports[0] and (name := name_of(frame)):
        entered.setdefault(name)
        while (frame := frame.f_back) is not None and not (caller := name_of(frame)):
            pass
        if frame is not None and caller != name:
            stops.add(caller)
sys.setprofile(enter)
try:
    sys.argv = ["whystuck", "diagnose", sys.argv[1]]
    main()
finally:
    sys.setprofile(None)
    print("WAY", *(name + (" +" if name in stops else " -") for name in entered), file=sys.stderr)
"""


@dataclass(frozen=True)
class Import:
    """One module of ours that another one imports."""

    source: str
    target: str
    is_hidden: bool
    is_for_types: bool


@dataclass
class Tree:
    """The modules of the package, and what they import."""

    root: Path
    lines: dict[str, int] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)

    def __post_init__(self) -> None:
        for path in sorted(self.root.glob(f"{PACKAGE}/**/*.py")):
            parts = path.relative_to(self.root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.paths[name] = path
            self.lines[name] = path.read_text().count("\n")
        for name, path in self.paths.items():
            self.imports += self._read_imports(name, path)

    def _read_imports(self, name: str, path: Path) -> Iterator[Import]:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node, is_hidden, is_for_types in walk_statements(ast.parse(path.read_text())):
            for target in self._find_targets(node, package):
                if target != name:
                    yield Import(name, target, is_hidden, is_for_types)

    def _find_targets(self, node: ast.stmt, package: str) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in self.paths)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for one in node.names:
                full = f"{base}.{one.name}"
                if full in self.paths:
                    yield full
                elif base in self.paths:
                    yield base

    @cached_property
    def entries(self) -> set[str]:
        """What lies right under the package."""
        return {entry_of(name) for name in self.paths if name != PACKAGE}

    @cached_property
    def loose(self) -> set[str]:
        """The entries that are one module, `__main__` apart."""
        names = (PACKAGE, f"{PACKAGE}.__main__")
        return {
            name
            for name, path in self.paths.items()
            if path.parent == self.root / PACKAGE and name not in names
        }

    @cached_property
    def arrows(self) -> set[tuple[str, str]]:
        """Entries that import each other."""
        found = {(entry_of(one.source), entry_of(one.target)) for one in self.imports}
        return {(a, b) for a, b in found if a != b and PACKAGE not in (a, b)}

    @cached_property
    def circles(self) -> list[list[str]]:
        """Modules that import each other in the end, and packages that do."""
        modules = {
            (one.source, one.target)
            for one in self.imports
            if not one.is_for_types and self.paths[one.target].name != "__init__.py"
        }
        return find_circles(modules) + find_circles(self.arrows)

    @cached_property
    def height(self) -> dict[str, int]:
        """How many layers lie below each entry, by the contract in `pyproject.toml`."""
        with (self.root.parent / "pyproject.toml").open("rb") as file:
            contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
        layers = next(one["layers"] for one in contracts if one["type"] == "layers")
        return {
            f"{PACKAGE}.{name.strip()}": height
            for height, layer in enumerate(reversed(layers))
            for name in layer.split("|")
        }

    @cached_property
    def upwards(self) -> list[str]:
        """Arrows that do not go to a lower layer; an entry without a layer is above all."""
        top = len(self.height)
        return sorted(
            f"{a} -> {b}"
            for a, b in self.arrows
            if self.height.get(a, top) <= self.height.get(b, top)
        )

    @cached_property
    def late(self) -> list[tuple[str, str]]:
        """Imports in functions."""
        found = {
            (one.source, one.target)
            for one in self.imports
            if one.is_hidden and not one.is_for_types
        }
        return sorted(found)

    @cached_property
    def needless(self) -> list[str]:
        """Imports in functions without a reason: of what is imported anyway, or not in `LATE`."""
        after: dict[str, set[str]] = defaultdict(set)
        for one in self.imports:
            if not one.is_hidden and not one.is_for_types:
                after[one.source] |= {one.target, *find_packages(one.target)}
        found = [
            f"{source} -> {target} in a function"
            for source, target in self.late
            if not source.startswith(tuple(LATE))
            or target in find_reached(after, [source, *find_packages(source)])
        ]
        sources = tuple(source for source, _ in self.late)
        unused = [name for name in LATE if not any(one.startswith(name) for one in sources)]
        return [*found, *(f"LATE has {name}, which imports nothing late" for name in unused)]

    def importers(self) -> dict[str, set[str]]:
        """Return who imports each module."""
        found = defaultdict(set)
        for one in self.imports:
            found[one.target].add(one.source)
        return found


def entry_of(name: str) -> str:
    """Return the entry that a module lies in."""
    return ".".join(name.split(".")[:2])


def walk_statements(
    node: ast.AST, *, is_hidden: bool = False, is_for_types: bool = False
) -> Iterator[tuple[ast.stmt, bool, bool]]:
    """Yield statements, whether they are in a function, and whether they are for types only."""
    for child in ast.iter_child_nodes(node):
        hidden = is_hidden or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        types = is_for_types or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        if isinstance(child, ast.stmt):
            yield child, hidden, types
        yield from walk_statements(child, is_hidden=hidden, is_for_types=types)


def find_circles(arrows: set[tuple[str, str]]) -> list[list[str]]:
    """Return the sets of names that reach each other."""
    after = defaultdict(set)
    for source, target in arrows:
        after[source].add(target)
    reach = {name: find_reached(after, [name]) for name in list(after)}
    circles = {
        tuple(sorted(b for b in reach[a] if a in reach.get(b, ()))) for a in reach if a in reach[a]
    }
    return [list(one) for one in sorted(circles)]


def find_reached(after: Mapping[str, set[str]], names: Iterable[str]) -> set[str]:
    """Return the names that arrows lead to from some names."""
    seen: set[str] = set()
    left = [target for name in names for target in after.get(name, ())]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left += after.get(one, ())
    return seen


def find_packages(name: str) -> Iterator[str]:
    """Yield the packages that a name lies in, which are imported before it."""
    while name := name.rpartition(".")[0]:
        yield name


def follow_dump() -> tuple[list[str], list[str]]:
    """Return the modules that are entered from one dump to its report, and the stops among them."""
    from bench.fr_dumps import Layout, write_dumps

    with tempfile.TemporaryDirectory() as name:
        write_dumps(Path(name), Layout(world=8, tensor=2, pipeline=2))
        command = [sys.executable, "-c", WAY, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = [line for line in done.stderr.splitlines() if line.startswith("WAY ")][-1].split()[1:]
    entered = dict(zip(words[::2], words[1::2], strict=True))
    way = [one for one in entered if not one.startswith(f"{RULES}.")]
    return way, [one for one in way if entered[one] == "+"]


def measure(tree: Tree) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the figures, and what is counted in them, by name."""
    siblings = Counter(
        str(path.parent.relative_to(tree.root))
        for name, path in tree.paths.items()
        if path.name != "__init__.py" and not name.startswith(f"{RULES}.")
    )
    single = {
        target: next(iter(sources))
        for target, sources in tree.importers().items()
        if len(sources) == 1 and tree.paths[target].name != "__init__.py"
    }
    small = [
        name
        for name, source in single.items()
        if tree.lines[name] < SMALL_LINES and name.rpartition(".")[0] == source.rpartition(".")[0]
    ]
    way, stops = follow_dump()
    rooms = [entry_of(name) for name in stops]
    back = [
        f"{last} -> {name}"
        for last, name in itertools.pairwise(stops)
        if tree.height.get(entry_of(name), 0) > tree.height.get(entry_of(last), 0)
    ]
    lists = {
        "entries": sorted(tree.entries),
        "loose modules": sorted(tree.loose),
        "arrows between entries": sorted(f"{a} -> {b}" for a, b in tree.arrows),
        "arrows that run upwards": tree.upwards,
        "circles": [" ".join(one) for one in tree.circles],
        "imports in functions": [f"{source} -> {target}" for source, target in tree.late],
        "of these, without a reason": tree.needless,
        "stops of a dump": stops,
        "rooms of these stops": sorted(set(rooms)),
        "stops back up": back,
        "modules that a dump enters": way,
        "modules in one folder": [f"{count} {name}" for name, count in siblings.most_common(12)],
        "modules with one importer": sorted(single),
        "of these, small and beside it": sorted(small),
        "modules of 350 lines and more": sorted(
            f"{count} {name}" for name, count in tree.lines.items() if count >= LONG_LINES
        ),
    }
    figures = {name: len(found) for name, found in lists.items()}
    figures["modules in one folder"] = max(siblings.values())
    figures["modules"], figures["lines"] = len(tree.paths), sum(tree.lines.values())
    return figures, lists


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true", help="name what is counted")
    parser.add_argument("--check", action="store_true", help="only look for what is wrong")
    options = parser.parse_args()
    tree = Tree(ROOT)
    if options.check:
        wrong = [*(" ".join(one) for one in tree.circles), *tree.upwards, *tree.needless]
        print(*(f"wrong: {one}" for one in wrong), sep="\n", end="\n" if wrong else "")
        return 1 if wrong else 0
    figures, lists = measure(tree)
    for name, figure in figures.items():
        goal = f"(goal: {GOALS[name]} at most)" if name in GOALS else ""
        print(f"{name:32} {figure:6} {goal}".rstrip())
        if options.list:
            print(*(f"    {one}" for one in lists.get(name, ())), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
