"""Checks as lines of ``fault.log``: those of a boot check, and those of one after a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from whystuck.evidence.finding import Report
from whystuck.evidence.nodes.checks import CheckResult, Outcome

_WORDS = {
    Outcome.OK: "Succeed",
    Outcome.WARNING: "Warning",
    Outcome.FAILED: "Failed",
    Outcome.SKIPPED: "Skipped",
    Outcome.INCOMPLETE: "Incomplete",
}
# Facts by the names under which platforms list them.
_FACTS = {
    "devices": "GPU Type",
    "CUDA": "CUDA",
    "ROCm": "ROCm",
    "CANN": "CANN",
    "torch": "PyTorch Version",
    "NCCL": "NCCL Version",
}
_BUS_BANDWIDTH = "busbw_gbps"
# Figures that say by themselves when a node has become slower, and by how much that is told.
_COMPARED = {
    "read_mb_per_s": "MB/s read",
    "write_mb_per_s": "MB/s write",
    _BUS_BANDWIDTH: "GB/s bus bandwidth",
    "cpu_tflops": "TFLOP/s",
}
# Other users of the node make figures fall by half.
_LEFT_SHARE = 1 / 3


def list_boot_lines(results: Sequence[CheckResult], report: Report, took_s: float) -> list[str]:
    """Return the lines of a check before the job."""
    return [
        "Start to run Bootchecking...",
        *_list_results(results),
        *_list_findings(report),
        f"Check Finished. ({len(results)} checks in {took_s:.1f} s)",
    ]


def list_later_lines(
    results: Sequence[CheckResult], before: Sequence[CheckResult], report: Report, took_s: float
) -> list[str]:
    """Return the lines of a check after a failure, compared with the one before the job."""
    return [
        "Start to run Troubleshooting...",
        *_list_results(results),
        *list_changes(results, before),
        *_list_findings(report),
        f"Check Finished. ({len(results)} checks in {took_s:.1f} s)",
    ]


def list_changes(results: Sequence[CheckResult], before: Sequence[CheckResult]) -> list[str]:
    """Return what is worse than before the job: outcomes, and figures that fell far."""
    known = {result.title: result for result in before}
    lines = []
    for result in results:
        name = result.title
        was = known.get(name)
        if was is None:
            continue
        if result.outcome is not was.outcome:
            now, then = _WORDS[result.outcome], _WORDS[was.outcome]
            lines.append(f"Check {name} changed: {now}, before the job {then}")
        lines += [f"Check {name} changed: {text}" for text in _compare(result.figures, was.figures)]
    return lines


def _compare(now: Mapping[str, float], then: Mapping[str, float]) -> Iterator[str]:
    for name, unit in _COMPARED.items():
        if name in now and now[name] < then.get(name, 0.0) * _LEFT_SHARE:
            yield f"{now[name]:.3g} {unit}, before the job {then[name]:.3g}"


def _list_results(results: Sequence[CheckResult]) -> Iterator[str]:
    for result in results:
        word = _WORDS[result.outcome]
        if result.name == "disk":
            yield f"DiskTest {result.subject}: {word}"
            if "read_mb_per_s" in result.figures:
                read, write = result.figures["read_mb_per_s"], result.figures["write_mb_per_s"]
                yield f"{result.subject} RW TEST: {read:.0f} MB/s {write:.0f} MB/s"
        elif result.name == "versions" and result.facts and not result.subject:
            yield f"GPU Number: {result.figures.get('devices', 0):.0f}"
            for name, title in _FACTS.items():
                yield f"{title}: {result.facts.get(name, 'unknown')}"
        elif result.name == "allreduce":
            where = f" over {result.subject}" if result.subject else ""
            yield f"AllReduce Check{where}: {word}{_tell_bandwidth(result)}"
        else:
            reason = f" ({result.reason})" if result.reason else ""
            yield f"Check {result.title}: {word}{reason}"


def _tell_bandwidth(result: CheckResult) -> str:
    if _BUS_BANDWIDTH not in result.figures:
        return f" ({result.reason})" if result.reason else ""
    figure = f"bus bandwidth {result.figures[_BUS_BANDWIDTH]:.3g} GB/s, min over ranks"
    return f" ({result.facts.get('op', '')}, {figure})"


def _list_findings(report: Report) -> Iterator[str]:
    for finding in report.findings:
        yield f"{finding.severity.value}: {finding.code} {finding.name}: {finding.summary}"
