"""The words of a report, the same in every format: renderers only lay them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystuck.evidence.finding import Citation, Finding, Gap, Place, Report, Severity, Verdict
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import name_ranks, parse_ranks
from whystuck.report.figures import format_detail, format_duration, format_measure
from whystuck.report.job import describe_job, describe_other_runs
from whystuck.report.logs import describe_files
from whystuck.report.stacks import StackRow, fold_stacks
from whystuck.report.traces import describe_coverage
from whystuck.safe_text.escaping import show_line

GAP_CODE = "E901"
FAILED_CODE = "E902"
# Source lines of the places; shown with the place, not as a detail.
_CODE_DETAIL = "code"

_CONFIDENCE = {
    "certain": "certain: the evidence leaves no other explanation",
    "likely": "likely: the evidence fits, and no other explanation fits as well",
    "possible": "possible: the evidence fits, but is not enough to be sure",
}
# Sources of a report for which nothing but logs was read.
_TOLD_BY_LOGS = {"logs", "exceptions", "exits", "fatal stacks"}
_VERDICTS = {
    Verdict.HEALTHY: "nothing is wrong in what was read",
    Verdict.WAITING: "the job waits for a rank that makes progress",
    Verdict.STUCK: "the job is stuck",
    Verdict.SLOW: "the job is slow",
    Verdict.CRASHED: "the job crashed",
    Verdict.DIVERGED: "the ranks do not compute the same",
    Verdict.UNFIT: "this machine is not fit to train",
    Verdict.INCONCLUSIVE: "the evidence does not tell what is wrong",
}


@dataclass(frozen=True)
class PlaceWords:
    """A place that some ranks are at; ``code`` is its source line, or empty."""

    file: str
    line: int
    function: str
    ranks: str
    code: str


@dataclass(frozen=True)
class FindingWords:
    """One finding in words. ``why`` are sentences with the number of their evidence, or 0."""

    severity: str
    code: str
    name: str
    summary: str
    culprit_ranks: frozenset[int]
    victim_ranks: frozenset[int]
    culprits: str
    victims: str
    places: tuple[PlaceWords, ...]
    why: tuple[tuple[str, int], ...]
    evidence: tuple[str, ...]
    figures: tuple[str, ...]
    ruled_out: tuple[str, ...]
    remedies: tuple[str, ...]
    confidence: str


@dataclass(frozen=True)
class ReportWords:
    """A whole report in words."""

    verdict: str
    sentence: str
    job: tuple[str, ...]
    other_runs: str
    headline: tuple[str, ...]
    findings: tuple[FindingWords, ...]
    stacks: tuple[StackRow, ...]
    gaps: tuple[str, ...]
    count: str
    next_step: str

    @property
    def named_ranks(self) -> frozenset[int]:
        """The ranks that the first finding names."""
        return self.findings[0].culprit_ranks if self.findings else frozenset()


def describe_report(report: Report) -> ReportWords:
    """Put ``report`` into words."""
    gaps = _gaps(report.gaps)
    return ReportWords(
        verdict=str(report.verdict.value),
        sentence=_sentence(report),
        job=describe_job(report.job),
        other_runs=describe_other_runs(report.job),
        headline=tuple(_headline(report)),
        findings=tuple(
            describe_finding(finding, str(report.context.get("cwd", "")))
            for finding in report.findings
        ),
        stacks=tuple(fold_stacks(report.stacks)),
        gaps=gaps,
        count=_count(report.findings, len(gaps)),
        next_step=_next_step(report),
    )


def _sentence(report: Report) -> str:
    """Say in a sentence what the verdict is; a comparison says it in its own words."""
    own = report.context.get("sentence")
    return show_line(own) if isinstance(own, str) and own else _VERDICTS[report.verdict]


def describe_finding(finding: Finding, cwd: str = "") -> FindingWords:
    """Put one finding into words; paths below ``cwd``, where the job ran, are made relative."""
    evidence = _evidence(finding.because)
    return FindingWords(
        severity=str(finding.severity.value),
        code=show_line(finding.code),
        name=show_line(finding.name),
        summary=show_line(finding.summary),
        culprit_ranks=frozenset(finding.culprits.ranks),
        victim_ranks=parse_ranks(finding.victims.ranks),
        culprits=_culprits(finding),
        victims=_victims(finding),
        places=_places(finding.where, finding.details.get(_CODE_DETAIL), cwd),
        why=tuple(
            (show_line(fact.text), evidence.get(_artifact(fact), 0)) for fact in finding.because
        ),
        evidence=tuple(evidence),
        figures=_figures(finding),
        ruled_out=tuple(show_line(text) for text in finding.ruled_out),
        remedies=tuple(show_line(text) for text in finding.remedies),
        confidence=_CONFIDENCE[finding.confidence.value],
    )


def _headline(report: Report) -> list[str]:
    coverage, context = report.coverage, report.context
    if context.get("kind") == "check":
        return _head_checks(report)
    seen = coverage.ranks_seen
    expected = max(coverage.ranks_expected, seen)
    parts = [f"read {seen} of {_plural(expected, 'rank')}" if expected else "read no rank"]
    nodes = context.get("nodes")
    number = nodes if isinstance(nodes, int) else len(nodes) if isinstance(nodes, list) else 0
    if number:
        parts.append(_plural(number, "node"))
    files = describe_files(report.logs)
    words = {
        "logs": files,
        "traces": describe_coverage(report.traces) if report.traces.files else "",
    }
    sources = [words.get(name) or name for name in coverage.sources]
    if sources:
        parts.append(show_line(", ".join(sources)))
    end_class = context.get("end_class")
    if isinstance(end_class, str) and end_class:
        parts.append(show_line(end_class.replace("-", " ")))
    stalled = context.get("stalled_s")
    if isinstance(stalled, (int, float)) and stalled > 0:
        parts.append(f"stalled for {format_duration(stalled)}")
    closed = context.get("closed_after_s")
    if isinstance(closed, (int, float)):
        parts.append(f"moving again after {format_duration(closed)}")
    elif isinstance(context.get("closed"), str) and context["closed"]:
        parts.append(show_line(context["closed"]))
    return parts


def _head_checks(report: Report) -> list[str]:
    nodes, took_s = report.context.get("nodes"), report.context.get("took_s")
    parts = [_plural(len(report.checks), "check")]
    if isinstance(nodes, list) and nodes:
        parts[0] += show_line(f" of {', '.join(str(node) for node in nodes)}")
    if isinstance(took_s, (int, float)):
        parts.append(f"in {format_duration(took_s)}")
    return parts


def _places(where: Sequence[Place], code: object, cwd: str) -> tuple[PlaceWords, ...]:
    source = code if isinstance(code, dict) else {}
    ranks_by_place: dict[tuple[str, int, str], list[int]] = {}
    for place in where:
        ranks_by_place.setdefault((place.file, place.line, place.function), []).append(place.rank)
    return tuple(
        PlaceWords(
            file=show_line(file.removeprefix(f"{cwd.rstrip('/')}/") if cwd else file),
            line=line,
            function=show_line(function),
            ranks=_name_known(ranks),
            code=show_line(str(source.get(f"{file}:{line}", "")).strip()),
        )
        for (file, line, function), ranks in ranks_by_place.items()
    )


def _name_known(ranks: Sequence[int]) -> str:
    """Name ranks; processes of unknown rank that a stack tells of have numbers below -1."""
    known = [rank for rank in ranks if rank >= 0]
    if known:
        return name_ranks(known)
    return "a rank" if set(ranks) <= {UNKNOWN_RANK} else "a process"


def _evidence(because: Sequence[Citation]) -> dict[str, int]:
    """Number the artifacts from 1, in the order they are cited."""
    artifacts = dict.fromkeys(_artifact(fact) for fact in because if fact.artifact)
    return {artifact: number for number, artifact in enumerate(artifacts, 1)}


def _artifact(fact: Citation) -> str:
    row = "" if fact.row is None else f" row {fact.row}"
    return show_line(f"{fact.artifact}{row}")


def _culprits(finding: Finding) -> str:
    culprits = finding.culprits
    parts = [name_ranks(culprits.ranks)] if culprits.ranks else []
    if culprits.nodes:
        parts.append("on " + ", ".join(culprits.nodes))
    if culprits.groups:
        plural = "group" if len(culprits.groups) == 1 else "groups"
        parts += [] if parts else ["not known,"]
        parts.append(f"in {plural} " + ", ".join(culprits.groups))
    return show_line(" ".join(parts))


def _victims(finding: Finding) -> str:
    if not finding.victims.ranks:
        return ""
    ranks = parse_ranks(finding.victims.ranks)
    text = name_ranks(ranks) if ranks else f"ranks {finding.victims.ranks}"
    return show_line(f"{text} only {'suffers' if len(ranks) == 1 else 'suffer'} from it")


def _figures(finding: Finding) -> tuple[str, ...]:
    details = [
        format_detail(name, value)
        for name, value in finding.details.items()
        if name != _CODE_DETAIL and value not in ("", None, [], {}) and not _is_table(value)
    ]
    return (*details, *(format_measure(*item) for item in finding.measures.items()))


def _is_table(value: object) -> bool:
    """Tell whether a detail is a list of rows, which are for the JSON report."""
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _gaps(gaps: Sequence[Gap]) -> tuple[str, ...]:
    """Fold equal gaps of several ranks into one sentence each."""
    ranks_by_gap: dict[tuple[str, str], list[int]] = {}
    for gap in gaps:
        ranks = ranks_by_gap.setdefault((gap.what, gap.reason), [])
        if gap.rank is not None:
            ranks.append(gap.rank)
    sentences = []
    for (what, reason), ranks in ranks_by_gap.items():
        owner = f" of {name_ranks(ranks)}" if ranks else ""
        sentences.append(show_line(f"no {what.removeprefix('no ')}{owner}: {reason}"))
    return tuple(sentences)


def _count(findings: Sequence[Finding], gaps: int) -> str:
    number = {
        severity: sum(finding.severity is severity for finding in findings) for severity in Severity
    }
    notes = number[Severity.NOTE] + gaps
    return (
        f"{_plural(number[Severity.ERROR], 'error')}, "
        f"{_plural(number[Severity.WARNING], 'warning')}, {_plural(notes, 'note')}"
    )


_TRACE_AGAIN = (
    "trace some steps again, with the device: `profile(activities=[CPU, CUDA])` of torch "
    "and `profiler.step()` after each step"
)
_DOCTOR = "run `whystuck doctor`: it tells what cannot be seen of a job on this machine"
_STEPS = {
    "stall": _DOCTOR,
    "exit": _DOCTOR,
    "check": "make the checks again that are incomplete, e.g. `whystuck check --only NAME`",
}
_TRACE_BOTH = "trace 20 steps of both runs, e.g. `whystuck trace start --iterations 20`"


def _has_failed(report: Report) -> bool:
    """Return whether whystuck itself failed at a part, which more evidence would not mend."""
    return any(finding.code == FAILED_CODE for finding in report.findings)


def _next_step(report: Report) -> str:
    if report.verdict is not Verdict.INCONCLUSIVE or _has_failed(report):
        return ""
    if report.coverage.sources == ["traces"]:
        is_diff = report.context.get("kind") == "trace diff"
        return _TRACE_BOTH if is_diff else _TRACE_AGAIN
    if (kind := str(report.context.get("kind"))) in _STEPS:
        return _STEPS[kind]
    return report.logs.next_command or _next_evidence(report)


def _next_evidence(report: Report) -> str:
    if report.logs.files and set(report.coverage.sources) <= _TOLD_BY_LOGS:
        return (
            "add the logs of all ranks, of the launcher and of the kernel; a job that is started "
            "with `whystuck run -- COMMAND` keeps what tells why it ends"
        )
    if "stacks" in report.coverage.sources:
        return (
            "start the job with `whystuck run -- COMMAND`: it records what every rank does, and "
            "keeps the scene when the job stops moving"
        )
    return (
        "run `whystuck snapshot` on each node while the job does not move, then "
        "`whystuck diagnose` the folder it writes"
    )


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
