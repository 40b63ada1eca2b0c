"""The exit code of a job by its root cause, where that was asked for.

Kubernetes operators take codes from 128 on for failures after which another try may help, and those
below for failures of the job itself: so do the codes here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.evidence.errors import UsageError
from whystuck.launch.restarts.ending import RootCause, RoundEnd

CODES: Mapping[str, int] = {"hardware": 200, "lost": 201, "communication": 202, "code": 100}
"""By class, with `--exit-code root-cause`; above all signals where another node may help."""
_UNKNOWN = "unknown"
_LOST = frozenset({"C201", "C207", "C209"})
_COMMUNICATION = frozenset({"C211", "H121", "H122"})
_KEY = re.compile(r"[A-Z]\d{3}")
_MAX_CODE = 255
_HINT = "lines are like `hardware = 200`, `C206 = 77`, `unknown = 1`; codes go from 1 to 255"


@dataclass(frozen=True)
class ExitCodes:
    """Which code stands for which root cause."""

    is_root_cause: bool = False
    table: Mapping[str, int] = field(default_factory=dict)

    def choose(self, end: RoundEnd) -> int:
        """Return the code of a job that ended so; 0 stays 0, and what is not known stays too."""
        if end.code == 0 or end.was_asked:
            return end.code
        kind = classify(end.cause)
        ours = CODES.get(kind, end.code) if self.is_root_cause else end.code
        by_class = self.table.get(kind, ours)
        return by_class if end.cause is None else self.table.get(end.cause.code, by_class)


def classify(cause: RootCause | None) -> str:
    """Return the class of a root cause."""
    if cause is None:
        return _UNKNOWN
    if cause.is_hardware:
        return "hardware"
    if cause.code in _LOST:
        return "lost"
    if cause.code in _COMMUNICATION:
        return "communication"
    return "code" if cause.code[:1] in "CHSV" and cause.code != "C208" else _UNKNOWN


def read_exit_codes(kind: str | None, path: Path | None) -> ExitCodes:
    """Return the codes that options ask for.

    Args:
        kind: ``root-cause``, or ``child`` and None for the code of the command.
        path: A file whose codes go before ours.

    Raises:
        UsageError: The file cannot be read, or holds what is no code.
    """
    table = {} if path is None else _read_table(path)
    return ExitCodes(kind == "root-cause", table)


def _read_table(path: Path) -> dict[str, int]:
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        text = f"cannot read the exit codes in `{path}`: {reason}"
        raise UsageError(text, hint=_HINT) from problem
    for name, code in table.items():
        if name not in CODES and name != _UNKNOWN and not _KEY.fullmatch(name):
            raise UsageError(f"`{name}` in `{path}` is neither a code nor a class", hint=_HINT)
        if type(code) is not int or not 0 < code <= _MAX_CODE:
            raise UsageError(f"`{name}` in `{path}` has no exit code: {code}", hint=_HINT)
    return table
