"""Finds the regular expressions of the package, and how each is called.

Compiled patterns are found from the globals of all modules: in containers, classes, dataclasses,
bound methods, defaults and closures. Patterns that are given to functions of `re` as texts are
found in the source.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import BuiltinMethodType, FunctionType, ModuleType
from typing import Any

import whystuck

# What they need lies beside them in a folder of the job, or they change the process that
# imports them. Their patterns are found in the source alone.
_NOT_IMPORTED = ("whystuck.probe.site.", "whystuck.check.compute.in_job.")
_METHODS = frozenset(
    ("search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn")
)
_FUNCTIONS = _METHODS | {"compile"}
_CALL = re.compile(rf"(\w+|[\])])\.({'|'.join(sorted(_METHODS))})\b")
_USE = re.compile(rf"\bre\.(?:{'|'.join(sorted(_FUNCTIONS))})\(")
_IMPORTED = re.compile(r"^from \S+", re.MULTILINE)
_GLOBAL = re.compile(r"^\w+(?:: [^=\n]*)? = re\.compile\(", re.MULTILINE)
_DEPTH = 8


@dataclass
class Found:
    """A pattern, where it is, and the methods by which it is called."""

    pattern: re.Pattern[Any]
    names: list[str] = field(default_factory=list)
    methods: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return min(self.names)


@dataclass
class Collection:
    """All patterns, and where one is made at run time of what the source does not tell."""

    patterns: list[Found]
    unknown: list[str]


@functools.cache
def collect_patterns() -> Collection:
    """Find the patterns of all modules."""
    found: dict[tuple[object, int], Found] = {}
    unknown: list[str] = []
    for name in list_modules():
        _collect_module(name, found, unknown)
    return Collection(list(found.values()), unknown)


def list_modules() -> list[str]:
    """Return the names of all modules of the package."""
    names = [
        module.name
        for module in pkgutil.walk_packages(whystuck.__path__, "whystuck.")
        if not module.name.endswith("__main__")
    ]
    return ["whystuck", *names]


def _collect_module(name: str, found: dict[tuple[object, int], Found], unknown: list[str]) -> None:
    module = None if name.startswith(_NOT_IMPORTED) else importlib.import_module(name)
    held = list(_walk_module(module)) if module else []
    source = _read_source(name)
    calls = _Calls(source) if held else None
    for root, pattern, method in held:
        methods = {method} if method else calls.of(root, pattern, vars(module)) if calls else set()
        _add(found, pattern, f"{name}.{root}", methods)
    # Patterns that are globals are known.
    if len(_USE.findall(source)) > len(_GLOBAL.findall(source)) * bool(module):
        for line, method, given in _find_literals(source, module):
            if given is None:
                unknown.append(f"{name}: {line.strip()}")
            else:
                _add(found, given, f"{name}: {line.strip()[:60]}", {method} & _METHODS)


def _add(
    found: dict[tuple[object, int], Found], pattern: re.Pattern[Any], name: str, methods: set[str]
) -> None:
    one = found.setdefault((pattern.pattern, pattern.flags), Found(pattern))
    one.names.append(name)
    one.methods |= methods


@functools.cache
def _read_source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


class _Calls:
    """How the patterns of a module are called in it."""

    def __init__(self, source: str) -> None:
        # A module may have the name of a method.
        self._source = source = _IMPORTED.sub("", source)
        self._named: dict[str, set[str]] = defaultdict(set)
        for name, method in _CALL.findall(source):
            self._named[name].add(method)

    def of(self, root: str, pattern: re.Pattern[Any], known: Mapping[str, object]) -> set[str]:
        """Return the methods that are called on a pattern, which may be one of a table.

        A pattern of a table, or one that is handed on, may be called as any other value is.
        """
        if known.get(root) is pattern and not self._is_handed_on(root):
            return self._named[root]
        others = [
            methods
            for name, methods in self._named.items()
            if name != "re" and not isinstance(known.get(name), re.Pattern)
        ]
        # Any text can be split: that tells nothing of a pattern.
        return self._named[root].union(set().union(*others) - {"split"})

    def _is_handed_on(self, name: str) -> bool:
        uses = len(re.findall(rf"\b{name}\b(?!\.\w)(?!\s*(?::[^=\n]*)?=[^=])", self._source))
        return uses > 0


def _walk_module(module: ModuleType) -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Yield the patterns of a module: the global that holds it, itself, and its method if bound."""
    seen: set[int] = set()
    for name, value in list(vars(module).items()):
        if not name.startswith("__"):
            for pattern, method in _walk(value, module.__name__, seen, 0):
                yield name, pattern, method


def _walk(
    value: object, module: str, seen: set[int], depth: int
) -> Iterator[tuple[re.Pattern[Any], str]]:
    if isinstance(value, re.Pattern):
        yield value, ""
        return
    if value is None or isinstance(value, str | bytes | int | float | ModuleType):
        return
    if depth > _DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, BuiltinMethodType):
        if isinstance(value.__self__, re.Pattern):
            yield value.__self__, value.__name__
        return
    for part in _list_parts(value, module):
        yield from _walk(part, module, seen, depth + 1)


def _list_parts(value: object, module: str) -> Iterable[object]:
    """Return what a value holds; of classes and functions, only those of the module itself."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, tuple | list | set | frozenset):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, property):
        return [value.fget]
    return list(_list_own_parts(value, module))


def _list_own_parts(value: object, module: str) -> Iterable[object]:
    if isinstance(value, type):
        return list(vars(value).values()) if value.__module__ == module else []
    value = getattr(value, "__wrapped__", getattr(value, "__func__", value))
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*cells, *defaults] if value.__module__ == module else []
    if type(value).__module__.startswith("whystuck."):
        slots = [getattr(type(value), "__slots__", ())]
        names = [name for one in slots for name in ([one] if isinstance(one, str) else one)]
        return [*getattr(value, "__dict__", {}).values(), *(getattr(value, n, None) for n in names)]
    return []


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _find_literals(
    source: str, module: ModuleType | None
) -> Iterator[tuple[str, str, re.Pattern[Any] | None]]:
    """Yield the calls of functions of `re`: the line, the method, the pattern if it is known."""
    lines = source.splitlines()
    methods: dict[int, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            # Parents come first: `re.compile(...).match`.
            methods[id(node.value)] = node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in _FUNCTIONS
            and node.args
        ):
            method = methods.get(id(node), node.func.attr)
            yield lines[node.lineno - 1], method, _evaluate(node, module)


def _evaluate(call: ast.Call, module: ModuleType | None) -> re.Pattern[Any] | None:
    """Compile what a call gives to `re`, if it is made of constants and of globals alone."""
    known = {**vars(module)} if module else {"re": re}
    flags = [one.value for one in call.keywords if one.arg == "flags"]
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in ("compile", "search", "match", "fullmatch", "findall", "finditer"):
        flags += call.args[1 if name == "compile" else 2 :]
    try:
        pattern = eval(compile(ast.Expression(call.args[0]), "", "eval"), known)
        given = [eval(compile(ast.Expression(one), "", "eval"), known) for one in flags]
        return pattern if isinstance(pattern, re.Pattern) else re.compile(pattern, *given)
    except (NameError, AttributeError, TypeError, LookupError):
        return None
