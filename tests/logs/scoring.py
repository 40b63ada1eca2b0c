"""Scores what `diagnose` says of a case against its truth, by the rules of the README."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.logs.cases import Case, Role, Truth
from tests.logs.pad import Size, pad_case

from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Finding, Report, Severity, Verdict
from whystuck.pipeline import diagnose_paths

PLAIN: tuple[Size, ...] = ()
QUICK = (Size(16, seed=1), Size(64, seed=2, skew=30, interleave=True))
FULL = (
    Size(8, seed=3),
    Size(16, seed=4, interleave=True, colour=True),
    Size(64, seed=5, skew=120, wrap="iso"),
    Size(64, seed=6, skew=30, wrap="k8s", crlf=True),
    Size(128, seed=7, skew=300, wrap="compose", interleave=True),
    Size(256, seed=8, skew=30),
    Size(512, seed=9, skew=60, interleave=True),
)


@dataclass(frozen=True)
class Score:
    """What was said of one case.

    Attributes:
        name: The case.
        size: How it was padded, empty when it was not.
        is_right: Whether code, ranks and nodes are right.
        is_cited: Whether a line of the role `cause` is cited; None where there is none.
        is_wrong_rank: Whether a rank is blamed that is a victim, or where none may be.
        is_decoy: Whether it rests on a decoy: the answer is wrong and cites one.
        is_inconclusive: Whether the verdict is that nobody can tell.
        wanted: What the truth says.
        got: What was said, for a person.
    """

    name: str
    size: str
    is_right: bool
    is_cited: bool | None
    is_wrong_rank: bool
    is_decoy: bool
    is_inconclusive: bool
    wanted: str
    got: str


def score_case(case: Case, size: Size | None = None) -> Score:
    """Diagnose a case, plain or padded, and score the answer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "logs"
        truth = write_case(case, size, folder)
        try:
            report = diagnose_paths([folder])
        except UsageError as error:
            raise AssertionError(f"{case.name} ({size}): {error}") from error
        return score_report(case.name, truth, report, size)


def write_case(case: Case, size: Size | None, folder: Path) -> Truth:
    """Write the logs of a case, without its truth, and return the truth of what was written."""
    if size is None:
        files = {file.name: (case.folder / file.name).read_bytes() for file in case.truth.files}
        truth = case.truth
    else:
        padded = pad_case(case, size)
        files, truth = padded.files, padded.truth or case.truth
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return truth


def score_report(name: str, truth: Truth, report: Report, size: Size | None) -> Score:
    """Score one report."""
    first = report.findings[0] if report.findings else None
    ranks = set(first.culprits.ranks) if first else set[int]()
    is_right = _is_honest(truth, report) if truth.inconclusive else _is_named(truth, first)
    cited = {f"{cite.artifact}:{cite.row}" for cite in first.because} if first else set()
    causes = _list_places(truth, "cause")
    return Score(
        name=name,
        size="" if size is None else f"{size.ranks} ranks, seed {size.seed}",
        is_right=is_right,
        is_cited=bool(causes & cited) if causes else None,
        is_wrong_rank=bool(ranks & set(truth.victims) or (ranks and not truth.ranks)),
        is_decoy=not is_right and bool(cited & _list_places(truth, "decoy")),
        is_inconclusive=report.verdict is Verdict.INCONCLUSIVE,
        wanted=f"{truth.code or 'inconclusive'} {truth.ranks} {truth.nodes}",
        got=f"{report.verdict} {[_show(item) for item in report.findings]}",
    )


def _is_named(truth: Truth, first: Finding | None) -> bool:
    return (
        first is not None
        and first.code in {truth.code, *truth.accept}
        and first.culprits.ranks == truth.ranks
        and (not truth.nodes or set(first.culprits.nodes) <= set(truth.nodes))
    )


def _is_honest(truth: Truth, report: Report) -> bool:
    told = [item for item in report.findings if item.severity is not Severity.NOTE]
    return report.verdict is Verdict.INCONCLUSIVE and all(
        item.code in truth.candidates and not item.culprits.ranks for item in told
    )


def _list_places(truth: Truth, role: Role) -> set[str]:
    return {cite.at for cite in truth.cited(role)}


def _show(item: Finding) -> str:
    where = "".join(f" {part}" for part in (item.culprits.ranks, item.culprits.nodes) if part)
    return f"{item.code}{where} {item.confidence}"


def count(scores: Iterable[Score]) -> dict[str, int]:
    """Count what matters over many scores."""
    scores = list(scores)
    return {
        "cases": len(scores),
        "right": sum(score.is_right for score in scores),
        "cited": sum(score.is_cited is not False for score in scores),
        "wrong rank": sum(score.is_wrong_rank for score in scores),
        "decoy": sum(score.is_decoy for score in scores),
        "inconclusive": sum(score.is_inconclusive for score in scores),
    }
