"""How a round ended, and why: what is decided on when a job may be started again."""

from __future__ import annotations

import signal

import msgspec

from whystuck.evidence.decoding import convert
from whystuck.evidence.finding import Finding, Report, Severity

_MAX_TEXT = 400
_MAX_NAMES = 64
# Beside the findings of checks (N4xx), which are about nodes alone.
_HARDWARE = frozenset({"C208"})
_ASKED_FOR = frozenset(
    128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
)


class RootCause(msgspec.Struct, frozen=True, kw_only=True):
    """The first finding of the report on an end.

    Attributes:
        code: Of the finding.
        summary: Its sentence.
        place: File, line and function of the first place that it names, empty without one.
        ranks: Whom it names.
        nodes: The nodes that it names.
        is_sure: Whether it is an error: a culprit that is only possible is a warning.
    """

    code: str
    summary: str = ""
    place: str = ""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    is_sure: bool = False

    @property
    def is_hardware(self) -> bool:
        """Whether it is a fault of a machine, with which no job should be started there."""
        return self.is_sure and (self.code in _HARDWARE or self.code.startswith("N"))

    @property
    def identity(self) -> tuple[object, ...]:
        """What is the same when the same thing has happened again."""
        # At one line, another rank may come first the next time.
        return (self.code, self.place) if self.place else (self.code, self.ranks, self.nodes)

    def is_about(self, node: str) -> bool:
        """Return whether it is a fault of a node; one of a check that names no node is nobody's."""
        if not self.nodes:
            return self.code in _HARDWARE
        # Where nodes share a name, their ranks are behind it.
        return any(name == node or name.startswith(f"{node} (") for name in self.nodes)

    def describe(self) -> str:
        """Return it as one line."""
        return f"{self.code}: {self.summary}"


class LeftProcess(msgspec.Struct, frozen=True, array_like=True):
    """A rank that lives after its launcher; ``started`` tells it from a later one with its pid."""

    pid: int
    started: int


class RoundEnd(msgspec.Struct, frozen=True):
    """How a round ended.

    Attributes:
        code: The exit code of the round.
        cause: Why it failed; None where nothing was found.
        steps: The most steps that a rank has made, or its own number of the last one.
        printed_step: The last number of a step that a rank has printed, -1 where none was seen.
        round: The number of the round, -1 where nobody watched.
        was_asked: Whether a signal came that ends jobs: nobody wants it to go on.
        node: The node whose cause it is, where several have agreed on one; else empty.
        ended_well: The nodes on which it ended with 0, where another one failed.
        left: Ranks of this node that outlived their launcher.
        too_few: Why there are too few nodes to go on, where others have left.
    """

    code: int
    cause: RootCause | None = None
    steps: int = 0
    printed_step: int = -1
    was_asked: bool = False
    round: int = -1
    node: str = ""
    ended_well: tuple[str, ...] = ()
    left: tuple[LeftProcess, ...] = ()
    too_few: str = ""

    @property
    def is_asked_for(self) -> bool:
        """Whether somebody wanted the end, by a signal to whystuck or to the command."""
        return self.was_asked or self.code in _ASKED_FOR


def decode_end(told: object, code: int) -> RoundEnd:
    """Return what the watcher told of an end; what cannot be read costs no more than that."""
    try:
        return convert(told, RoundEnd)
    except ValueError:
        return RoundEnd(code)


def find_root_cause(report: Report | None) -> RootCause | None:
    """Return the root cause that a report names; a note is none."""
    first = report.findings[0] if report is not None and report.findings else None
    return None if first is None or first.severity is Severity.NOTE else make_root_cause(first)


def make_root_cause(finding: Finding) -> RootCause:
    """Return a finding as the root cause of an end."""
    place = finding.where[0] if finding.where else None
    where = f"{place.file}:{place.line} {place.function}" if place else ""
    return RootCause(
        code=finding.code,
        summary=finding.summary[:_MAX_TEXT],
        place=where[-_MAX_TEXT:],
        ranks=tuple(finding.culprits.ranks[:_MAX_NAMES]),
        nodes=tuple(finding.culprits.nodes[:_MAX_NAMES]),
        is_sure=finding.severity is Severity.ERROR,
    )
