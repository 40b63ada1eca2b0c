"""Which tests start processes and which use torch, and samples of those with many cases.

Nobody marks them: a test is followed into its fixtures and into the functions and constants of
`tests` and `bench` that it names. What names `subprocess`, a fork or our Python starts a process;
what names torch, in code or in the text of a job that it starts, uses torch.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, ModuleType

import pytest
from hypothesis import settings

PROCESS, TORCH = "process", "torch"
NOT_QUICK = (PROCESS, TORCH, "slow")
QUICK_CASES, QUICK_EXAMPLES = 16, 20
# `make test-slow` checks properties that have more with all of theirs.
MOST_EXAMPLES = 100
_STARTERS = {
    "subprocess", "multiprocessing", "concurrent.futures.process", "asyncio.subprocess", "pty",
}  # fmt: skip
# Who names `sys.executable` has our own code start it.
_CALLS = {"fork", "forkpty", "posix_spawn", "execv", "create_subprocess_exec", "executable"}
_JOB = re.compile(r"^[ \t]*(?:import|from) torch\b|\btorchrun\b", re.MULTILINE)
_OURS = ("tests", "bench")
_JOB_MARK = "text of a job"


class Marks:
    """Finds the marks of tests; remembers what it has seen."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[object, set[str], list[object]]] = {}
        self._reached: dict[int, set[str]] = {}

    def of(self, item: pytest.Item) -> set[str]:
        """Return the marks that the code of a test and of its fixtures asks for."""
        if not isinstance(item, pytest.Function):
            return set()
        roots: list[object] = [item.function, *getattr(item, "callspec", _NO_CASE).params.values()]
        # Private: pytest has no other way to tell which fixtures a test is given in the end.
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            roots += [one.func for one in fixtures]
        found = set[str]().union(*map(self._reach, roots))
        if {PROCESS, _JOB_MARK} <= found:
            found.add(TORCH)
        return found - {_JOB_MARK}

    def _reach(self, root: object) -> set[str]:
        """Return the marks of a value and of all that it names, however far.

        They are kept: the cases of a test share its function and its fixtures.
        """
        known = self._reached.get(id(root))
        if known is not None:
            return known
        found, met, todo = set[str](), {id(root)}, [root]
        while todo:
            _, marks, named = self._look_at(todo.pop())
            found |= marks
            for value in named:
                if id(value) not in met:
                    met.add(id(value))
                    todo.append(value)
        self._reached[id(root)] = found
        return found

    def _look_at(self, value: object) -> tuple[object, set[str], list[object]]:
        known = self._seen.get(id(value))
        if known is None:  # the value is kept, so that nothing else gets its id
            known = self._seen[id(value)] = (value, *look_at(value))
        return known


class _NoCase:
    params: dict[str, object] = {}  # noqa: RUF012 - nobody writes to it


_NO_CASE = _NoCase()


def look_at(value: object) -> tuple[set[str], list[object]]:
    """Return the marks that one value asks for, and what else it names."""
    value = getattr(value, "__func__", value)
    if isinstance(value, str):
        return _look_at_text(value), []
    if isinstance(value, list | tuple):
        return set(), list(value)
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if isinstance(home, str) and (home in _STARTERS or home.partition(".")[0] == TORCH):
        return {PROCESS if home in _STARTERS else TORCH}, []
    if not isinstance(home, str) or home.partition(".")[0] not in _OURS:
        return set(), []
    if isinstance(value, type):
        return set(), [*vars(value).values(), *value.__bases__]
    return _look_at_code(value) if isinstance(value, FunctionType) else (set(), [])


def _look_at_text(text: str) -> set[str]:
    if text == sys.executable:  # the default of an argument
        return {PROCESS}
    # Few texts name torch, and some are long: the plain search leaves the pattern few.
    return {_JOB_MARK} if TORCH in text and _JOB.search(text) else set()


def _look_at_code(function: FunctionType) -> tuple[set[str], list[object]]:
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", None)
    named = [inner, getattr(function, "__wrapped__", None)]
    named += [cell.cell_contents for cell in function.__closure__ or ()]
    named += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    marks = set[str]()
    for code in _walk(function.__code__):
        named += [one for one in code.co_consts if isinstance(one, str | tuple)]
        for name in code.co_names:
            if name in _CALLS or name in _STARTERS:
                marks.add(PROCESS)
            elif name.partition(".")[0] == TORCH:
                marks.add(TORCH)
            elif name in function.__globals__:
                named.append(function.__globals__[name])
    return marks, named


def _walk(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _walk(constant)


def choose_quick(items: Sequence[pytest.Item], seed: int) -> set[pytest.Item]:
    """Return what the quick tier runs: no processes, and some cases of what has many."""
    cases = defaultdict[tuple[object, str], list[pytest.Item]](list)
    for item in items:
        if not any(item.get_closest_marker(name) for name in NOT_QUICK):
            cases[item.path, getattr(item, "originalname", item.name)].append(item)
    chosen = set[pytest.Item]()
    for one in cases.values():
        one.sort(key=lambda item: hashlib.blake2b(f"{seed} {item.nodeid}".encode()).digest())
        chosen.update(one[:QUICK_CASES])
    return chosen


def find_settings(item: pytest.Item) -> settings | None:
    """Return the settings of a test that checks a property."""
    # Private: `settings` cannot be applied to a function that has its own.
    now = getattr(getattr(item, "function", None), "_hypothesis_internal_use_settings", None)
    return now if isinstance(now, settings) else None


def has_many_examples(item: pytest.Item) -> bool:
    """Return whether a property wants more examples than `make test` has time for."""
    now = find_settings(item)
    return now is not None and now.max_examples > MOST_EXAMPLES


def limit_examples(items: Sequence[pytest.Item], most: int) -> None:
    """Let properties be checked with fewer examples."""
    for item in items:
        now = find_settings(item)
        if now is not None and now.max_examples > most:
            few = settings(now, max_examples=most)
            item.function._hypothesis_internal_use_settings = few  # type: ignore[attr-defined]
