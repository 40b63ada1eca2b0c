"""The cases: scripts that a job under ``whystuck run`` must do as it does without it."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Case:
    """One script, how its caller starts it, and what is compared.

    ``script`` is run by sh, ``python`` by this Python, ``torchrun`` by torchrun with two ranks,
    ``argv`` as it is. ``signal`` is sent when the script has printed READY, to all of its group
    where ``group`` says so. ``limits`` are those of :mod:`resource`, without their prefix.
    """

    topic: str
    name: str
    script: str = ""
    python: str = ""
    torchrun: str = ""
    argv: tuple[str, ...] = ()
    stdin: str | None = None
    join: bool = False
    terminal: bool = False
    typed: str = ""
    signal: str | int = ""
    group: bool = False
    umask: int = -1
    env: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    bare_environment: bool = False
    files: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    delete_cwd: bool = False
    open: dict[str, str] = field(default_factory=dict)
    close: tuple[int, ...] = ()
    to_null: tuple[int, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    disk: str = ""
    bare_skips: str = ""
    sort: bool = False
    only: tuple[str, ...] = ()
    settle_s: float = 0.0
    wall_slack_s: float = 1.0

    @property
    def id(self) -> str:
        """Topic and name."""
        return f"{self.topic}/{self.name}"


def load_cases() -> list[Case]:
    """Return all cases; raises TypeError for a key that no case has."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        for name, keys in tomllib.loads(path.read_text()).items():
            found.append(Case(path.stem, name, **{k: _frozen(v) for k, v in keys.items()}))
    return found


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
