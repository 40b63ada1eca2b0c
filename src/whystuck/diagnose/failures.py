"""What raised while evidence was judged: it costs the report that part, and nothing else."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity

CODE, NAME = codes.RULE_FAILED, "rule-failed"

_PACKAGE = Path(__file__).parents[1]
# Any failure passes through these.
_HELPERS = {"shared.py", "failures.py"}
_MAX_NAMED = 4
_MAX_FRAMES = 3
# Of an endless recursion, the innermost calls are enough.
_MAX_DEPTH = 50
_MAX_MESSAGE = 200
_REMEDY = "report this as a bug of whystuck, with this note: the evidence itself is not needed"

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Cause:
    """What was raised and where, and the innermost calls of ours that led there, the last first."""

    kind: str
    message: str
    place: tuple[str, int | None]
    calls: tuple[str, ...] = field(compare=False)

    @property
    def text(self) -> str:
        """What was raised, and where, in a line."""
        raised = f"{self.kind}: {self.message}" if self.message else self.kind
        return f"{raised} in {self.calls[0]}" if self.calls else raised


@dataclass
class _Lost:
    """What one cause took from the report: codes of rules, and parts of the report."""

    rules: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)


class Failures:
    """Runs what may raise, and notes what did, by its cause."""

    def __init__(self) -> None:
        self._lost: dict[_Cause, _Lost] = {}

    def __bool__(self) -> bool:
        return bool(self._lost)

    @property
    def rules(self) -> frozenset[str]:
        """The codes of the rules that failed."""
        return frozenset(code for lost in self._lost.values() for code in lost.rules)

    @property
    def parts(self) -> frozenset[str]:
        """The parts of the report that failed."""
        return frozenset(part for lost in self._lost.values() for part in lost.parts)

    def run_rules(self, rules: Iterable[type[Rule]], scene: Scene, policy: Policy) -> list[Finding]:
        """Run rules; what a rule has found before it raises stands."""
        found: list[Finding] = []
        for rule in rules:
            try:
                # One by one: a list of all would lose those that came before.
                for item in rule().check(scene, policy):
                    found.append(item)  # noqa: PERF402
            except Exception as problem:  # noqa: BLE001 - one rule must not cost the others
                self._add(problem).rules.append(rule.code)
        return found

    def attempt(self, part: str, work: Callable[[], _T], default: _T) -> _T:
        """Make a part of the report.

        Args:
            part: What it is, in words.
            work: Makes it.
            default: Stands in its place where that raises.

        Returns:
            The part.
        """
        try:
            return work()
        except Exception as problem:  # noqa: BLE001 - one part must not cost the others
            lost = self._add(problem)
            if part not in lost.parts:
                lost.parts.append(part)
            return default

    def gather(self, part: str, work: Callable[[], Iterable[_T]]) -> list[_T]:
        """Make a part of the report that is a list; where that raises, it is empty."""
        return self.attempt(part, lambda: list(work()), list[_T]())

    def list_findings(self) -> list[Finding]:
        """Return a note for each cause."""
        return [_make_note(cause, lost) for cause, lost in self._lost.items()]

    def _add(self, problem: Exception) -> _Lost:
        traceback.clear_frames(problem.__traceback__)
        return self._lost.setdefault(_find_cause(problem), _Lost())


def describe_problem(problem: BaseException) -> str:
    """Return what was raised, and where in whystuck, in a line; it may hold secrets."""
    return _find_cause(problem).text


def _find_cause(problem: BaseException) -> _Cause:
    frames = traceback.extract_tb(problem.__traceback__, limit=-_MAX_DEPTH)
    calls = [
        f"{frame.name} ({place}:{frame.lineno})"
        for frame in reversed(frames)
        if (place := _name_place(frame.filename))
    ]
    try:
        message = " ".join(str(problem).split())
    except Exception:  # noqa: BLE001 - what an exception says may raise, too
        message = ""
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]}…"
    raised = (frames[-1].filename, frames[-1].lineno) if frames else ("", None)
    return _Cause(type(problem).__name__, message, raised, tuple(calls[:_MAX_FRAMES]))


def _name_place(file: str) -> str:
    """Return the path of a file of ours from the package on; empty for others, and for helpers."""
    path = Path(file)
    if not path.is_relative_to(_PACKAGE) or path.name in _HELPERS:
        return ""
    return path.relative_to(_PACKAGE.parent).as_posix()


def _make_note(cause: _Cause, lost: _Lost) -> Finding:
    because = [Citation(cause.text)]
    because += [Citation(f"called by {call}") for call in cause.calls[1:]]
    where = f" in {cause.calls[0]}" if cause.calls else ""
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.NOTE,
        confidence=Confidence.CERTAIN,
        summary=f"whystuck itself raised {cause.kind}{where}; {_name_lost(lost)}",
        because=because,
        details={
            "exception": cause.kind,
            "place": cause.calls[0] if cause.calls else "",
            "rules": lost.rules,
            "parts": lost.parts,
        },
        remedies=[_REMEDY],
    )


def _name_lost(lost: _Lost) -> str:
    """Say what is missing from the report."""
    missing = []
    if lost.rules:
        missing.append(f"not judged: {_list_few(lost.rules)}")
    if lost.parts:
        missing.append(f"left out: {_list_few(lost.parts)}")
    return "; ".join(missing)


def _list_few(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
