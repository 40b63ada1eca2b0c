"""Which job a report is about, in words: when, what was run, with which versions."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.evidence.sections import JobInfo, OtherRun
from whystuck.safe_text.escaping import show_line

_MAX_COMMAND = 100
_MAX_RUNS = 3


def describe_job(job: JobInfo | None) -> tuple[str, ...]:
    """Return the facts about a job, each of them short; none for evidence of other tools."""
    return tuple(show_line(part) for part in _list_parts(job)) if job else ()


def _list_parts(job: JobInfo) -> Iterator[str]:
    if job.command:
        yield _shorten(job.command)
    if job.id:
        yield f"job {job.id}"
    if job.time:
        yield _show_time(job.time)
    if job.ended:
        yield job.ended
    if job.torch_version:
        yield f"torch {job.torch_version}"
    if job.whystuck_version:
        yield f"whystuck {job.whystuck_version}"


def describe_other_runs(job: JobInfo | None) -> str:
    """Return a sentence that names the runs that were not read; empty when there are none."""
    runs = job.other_runs if job else []
    if not runs or job is None:
        return ""
    named = "; ".join(_describe_run(run) for run in runs[:_MAX_RUNS])
    more = f"; and {len(runs) - _MAX_RUNS} more" if len(runs) > _MAX_RUNS else ""
    number = "another run" if len(runs) == 1 else f"{len(runs)} other runs"
    return show_line(f"read {job.folder}; {number} in this folder: {named}{more}")


def _describe_run(run: OtherRun) -> str:
    facts = [_show_time(run.started)] if run.started else []
    facts += [] if run.exit_code is None else [f"code {run.exit_code}"]
    facts += [run.verdict] if run.verdict else []
    return f"{run.path} ({', '.join(facts)})" if facts else run.path


def _show_time(time: str) -> str:
    return time.replace("T", " ").replace("Z", " UTC")


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_COMMAND else f"{text[: _MAX_COMMAND - 1]}…"
