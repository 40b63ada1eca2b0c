"""The cases of the corpus: what is true of each, and its files."""

from __future__ import annotations

import tomllib
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

CORPUS = Path(__file__).parent / "corpus"
# A second set in the style of what people report, written without a look at the readers and rules.
REPORTS = Path(__file__).parent / "reports"

Role = Literal["cause", "cascade", "decoy"]


class Citation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line that matters: `at` is FILE:LINE from 1, `has` a piece of its text."""

    role: Role
    at: str
    has: str
    # The decoy rule of the catalogue that this line is a trap for.
    rule: int | None = None

    @property
    def file(self) -> str:
        """The file, relative to the folder of the case."""
        return self.at.rpartition(":")[0]

    @property
    def line(self) -> int:
        """The number of the line, from 1; lines end at a line feed only."""
        return int(self.at.rpartition(":")[2])


class LogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a case, and what padding must know of it."""

    name: str
    # rank: one rank's output; merged: several ranks'; agent: the launcher's own; kernel, scheduler,
    # events and service (fabric manager and the like): what machines write.
    kind: Literal["rank", "merged", "agent", "kernel", "scheduler", "events", "service"]
    # Healthy lines go behind this line; 0 is the top of the file.
    insert: int
    # What healthy output looks like here: a name of `healthy.OUTPUTS`.
    output: str
    # Styles of `stamps` that must be found in the file.
    stamps: list[str] = []
    node: str | None = None
    rank: int | None = None
    # Merged files: what stands before each line of a rank, with {rank} and {local} in it.
    prefix: str | None = None
    # Ranks that write to a merged file.
    ranks: list[int] = []
    # Kernel logs with seconds since boot: when that was.
    boot: datetime | None = None


class Clock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the job started to train and when it failed, as the stamps without a zone say it."""

    start: datetime
    failed: datetime


class Padding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the job grows: where new ranks write, and what they do at the end."""

    # {rank} makes a file for each new rank, {node} one for each new node, neither: that file.
    file: str
    per_node: int
    node: str = "n{node}"
    # New ranks repeat what this rank writes from the failure on. Without: they just stop.
    like: int | None = None
    # False: the text tells how many ranks there are, or the fault needs just these.
    grow: bool = True
    # Seconds a node's clock may be off before the truth can no longer be told.
    max_skew: float | None = None


class Truth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is true of a case. `code` is absent where the right answer is that nobody can tell."""

    summary: str
    kind: Literal[
        "communication-timeout",
        "computation-error",
        "hardware-error",
        "process-lost",
        "ended-outside",
        "configuration",
        "unknown",
    ]
    world: int
    launcher: str
    torch: str
    lines: list[Citation]
    clock: Clock
    pad: Padding
    files: list[LogFile]
    code: str | None = None
    name: str | None = None
    # Other codes that are no mistake.
    accept: list[str] = []
    # Inconclusive: codes an honest answer may list as possible.
    candidates: list[str] = []
    # Ranks and nodes to blame. Empty: to name one would be a mistake.
    ranks: list[int] = []
    nodes: list[str] = []
    # Ranks that may be named as waiting or cut off, never as the cause.
    victims: list[int] = []
    nccl: str | None = None

    @property
    def inconclusive(self) -> bool:
        """Whether the right answer is that the evidence does not decide."""
        return self.code is None

    def cited(self, role: Role) -> list[Citation]:
        """Return the lines of one role."""
        return [line for line in self.lines if line.role == role]


class Case(msgspec.Struct, frozen=True):
    """A case: its name, its folder and its truth."""

    name: str
    folder: Path
    truth: Truth

    def read_lines(self, file: str) -> list[str]:
        """Return the lines of a file; only a line feed ends one, as progress bars use \\r."""
        text = (self.folder / file).read_bytes().decode()
        return text.removesuffix("\n").split("\n")


def load_case(folder: Path) -> Case:
    """Read a case.

    Raises:
        msgspec.ValidationError: `truth.toml` has a wrong field.
    """
    raw = tomllib.loads((folder / "truth.toml").read_text())
    return Case(folder.name, folder, msgspec.convert(raw, Truth))


def all_cases(folder: Path = CORPUS) -> list[Case]:
    """Return every case of the corpus, or of another folder, by name."""
    return [load_case(path.parent) for path in sorted(folder.glob("*/truth.toml"))]
