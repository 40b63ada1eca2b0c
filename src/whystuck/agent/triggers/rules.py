"""Rules of the agent's TOML file, read and checked; pure.

A rule is a table ``[[trigger]]``: when to take a trace, of whom, and what is to be in it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from whystuck.agent.ondemand.trace_contents import add_needed
from whystuck.evidence.agent import TraceRequest
from whystuck.evidence.decoding import convert
from whystuck.evidence.errors import UsageError

_MAX_RULES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}")
_HEADER: Final = re.compile(r"\s*\[\[\s*trigger\s*\]\]")
_HINT: Final = "the guide on automatic traces lists the keys of a rule"


class TriggerKind(StrEnum):
    """What a rule watches."""

    STEP_TIME = "step-time"
    """Steps take longer than they did before."""
    RANK_SLOW = "rank-slow"
    """One rank is slower than its peers."""
    STALL = "stall"
    """No step and no communication for a while."""
    GPU_LOW = "gpu-utilization-low"
    """The device of a rank has little to do."""


class Whom(StrEnum):
    """Of which ranks of the job a trace is taken."""

    AFFECTED = "affected"
    ALL = "all"


class TriggerRule(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One rule.

    ``threshold`` is in percent, or in seconds for a stall. ``for_s`` is how long it must be so.
    ``iterations`` of 0 asks for a trace of ``duration_ms``. At most ``max_per_day`` traces in 24
    hours are taken for the rule, and none within ``cooldown_s`` of the last. An empty ``job`` means
    every job.
    """

    name: str
    when: TriggerKind
    threshold: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 0.0
    for_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = -1.0
    iterations: Annotated[int, msgspec.Meta(ge=0, le=1000)] = -1
    duration_ms: Annotated[int, msgspec.Meta(ge=10, le=60_000)] = 500
    stacks: bool = False
    shapes: bool = False
    memory: bool = False
    flops: bool = False
    modules: bool = False
    cooldown_s: Annotated[float, msgspec.Meta(ge=0, le=7 * 86_400)] = 1800.0
    max_per_day: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 4
    ranks: Whom = Whom.AFFECTED
    job: str = ""

    def request(self, job: str, ranks: Sequence[int], output: str) -> TraceRequest:
        """Return what to ask for when the rule holds for these ranks; none means all."""
        request = TraceRequest(
            iterations=self.iterations,
            duration_ms=self.duration_ms,
            ranks=tuple(ranks),
            job=job,
            stacks=self.stacks,
            shapes=self.shapes,
            memory=self.memory,
            flops=self.flops,
            modules=self.modules,
            output=output,
        )
        return add_needed(request)


# What a rule has that does not say otherwise: one that does not step gets no request for steps.
_DEFAULTS: Final[Mapping[TriggerKind, Mapping[str, Any]]] = {
    TriggerKind.STEP_TIME: {"threshold": 20.0, "for_s": 90.0, "iterations": 5},
    TriggerKind.RANK_SLOW: {"threshold": 20.0, "for_s": 120.0, "iterations": 5},
    TriggerKind.STALL: {"threshold": 300.0, "for_s": 0.0, "iterations": 0, "stacks": True},
    TriggerKind.GPU_LOW: {"threshold": 20.0, "for_s": 300.0, "iterations": 0},
}
_MIN_FOR_S: Final = 10.0
_MAX_PERCENT: Final = {TriggerKind.RANK_SLOW: 95.0, TriggerKind.GPU_LOW: 100.0}


def parse_rules(tables: Sequence[Mapping[str, Any]], text: str = "") -> tuple[TriggerRule, ...]:
    """Read the tables of ``[[trigger]]``.

    Args:
        tables: As a TOML reader gives them.
        text: The file they come from; with it, errors tell the line.

    Returns:
        The rules, with the defaults of their kind.

    Raises:
        UsageError: A key, a value or a name is wrong; says which, and what was meant.
    """
    if len(tables) > _MAX_RULES:
        raise UsageError(f"there are more than {_MAX_RULES} rules in [[trigger]]", hint=_HINT)
    places = _find_tables(text)
    rules: list[TriggerRule] = []
    for index, table in enumerate(tables):
        place = _Place(index, places[index] if index < len(places) else {})
        rule = _parse_rule(table, place)
        if rule.name in {other.name for other in rules}:
            raise place.error("name", f"there is another rule `{rule.name}`", _HINT)
        rules.append(rule)
    return tuple(rules)


class _Place:
    """Where a table is: its number, and the lines of its keys in the file."""

    def __init__(self, index: int, lines: Mapping[str, int]) -> None:
        self._number = index + 1
        self._lines = lines

    def error(self, key: str, problem: str, hint: str) -> UsageError:
        """Make the error for a key."""
        line = self._lines.get(key) or self._lines.get("")
        where = f"line {line}, " if line else ""
        return UsageError(f"{where}[[trigger]] number {self._number}: {problem}", hint=hint)


def _find_tables(text: str) -> list[dict[str, int]]:
    """Return the line of each key of each table ``[[trigger]]``, that of its header under ""."""
    tables: list[dict[str, int]] = []
    is_inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("["):
            is_inside = bool(_HEADER.match(line))
            if is_inside:
                tables.append({"": number})
        elif is_inside and "=" in line:
            tables[-1].setdefault(line.partition("=")[0].strip().strip("\"'"), number)
    return tables


def _parse_rule(table: Mapping[str, Any], place: _Place) -> TriggerRule:
    if not isinstance(table, Mapping):
        raise place.error("", "it is no table", _HINT)
    known = TriggerRule.__struct_fields__
    for key in table:
        if key not in known:
            raise place.error(key, f"`{key}` is no key of a rule", _near(key, known))
    kind = _kind_of(table, place)
    _check_name(table, place)
    _check_together(table, kind, place)
    # A rule that asks for a duration means it.
    asked = {"iterations": 0} if "duration_ms" in table else {}
    try:
        return convert({**_DEFAULTS[kind], **asked, **table}, TriggerRule)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        key = path.strip("`")
        words = f"`{key}`: {what[:1].lower()}{what[1:]}" if key else what
        raise place.error(key, words, _HINT) from None


def _kind_of(table: Mapping[str, Any], place: _Place) -> TriggerKind:
    kinds = tuple(str(kind) for kind in TriggerKind)
    when = table.get("when")
    if when is None:
        raise place.error("", "it does not say `when`", f"one of: {', '.join(kinds)}")
    if when not in kinds:
        raise place.error("when", f"`when` may not be {when!r}", _near(str(when), kinds))
    return TriggerKind(when)


def _check_name(table: Mapping[str, Any], place: _Place) -> None:
    name = table.get("name")
    if name is None:
        raise place.error("", "it has no `name`", "names tell rules apart in logs and files")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = f"`name` may not be {name!r}"
        raise place.error("name", problem, "up to 63 letters, digits, spaces and `._-`")


def _check_together(table: Mapping[str, Any], kind: TriggerKind, place: _Place) -> None:
    for key, value in table.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise place.error(key, f"`{key}` may not be {value}", "write a number")
    threshold = table.get("threshold")
    limit = _MAX_PERCENT.get(kind)
    if limit is not None and isinstance(threshold, (int, float)) and threshold > limit:
        problem = f"a `threshold` of {threshold:g} is too much"
        raise place.error("threshold", problem, f"for {kind} it is a percentage up to {limit:g}")
    for_s = table.get("for_s")
    if kind is not TriggerKind.STALL and isinstance(for_s, (int, float)) and for_s < _MIN_FOR_S:
        problem = f"a `for_s` of {for_s:g} is too short to tell"
        raise place.error("for_s", problem, f"for {kind} it is {_MIN_FOR_S:g} seconds or more")
    if kind is TriggerKind.STALL and table.get("iterations"):
        problem = "a job that stalls makes no iterations to trace"
        raise place.error("iterations", problem, "ask for `duration_ms`, in milliseconds")
    if table.get("iterations") and "duration_ms" in table:
        problem = "it asks for both `iterations` and `duration_ms`"
        raise place.error("duration_ms", problem, "leave one of them out")


def _near(word: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean `{found[0]}`?" if found else f"known here: {', '.join(known)}"
