"""What becomes of a trace that Kineto has written: the file that was wanted, or why not."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.agent.ondemand import finishing
from whystuck.agent.ondemand.finishing import FinishError, Order
from whystuck.agent.ondemand.reach import Found
from whystuck.agent.ondemand.runs import Run
from whystuck.evidence.agent import TraceState


@dataclass(frozen=True)
class Delivery:
    """How the trace of one process ended; ``is_kept`` when the file is Kineto's own."""

    state: TraceState
    reason: str = ""
    file: str = ""
    file_bytes: int = 0
    is_kept: bool = False


def deliver(run: Run, default_output: str) -> Delivery:
    """Make the file that was wanted.

    Args:
        run: The trace, whose file Kineto has written.
        default_output: Where it goes when the request does not say.

    Returns:
        How it ended. A file that cannot be moved stays where it is.
    """
    source = run.file.find()
    if source is None:
        return Delivery(TraceState.FAILED, "its file was removed by somebody else")
    if problem := finishing.check_whole(source):
        return Delivery(TraceState.FAILED, f"the trace is no good: {problem}")
    request = run.job.request
    # Who names the file himself waits for exactly that one.
    output = request.output or ("" if run.file.folder is None else default_output)
    if not output:
        return _keep(run, source)
    order = Order(
        source=source,
        output=output,
        name=finishing.make_name(run.entry, request.id),
        added=finishing.make_added(run.entry),
        is_packed=request.packed,
    )
    try:
        done = finishing.finish(order)
    except FinishError as error:
        kept = _keep(run, source)
        reason = f"{error}; it stays at {kept.file}"
        return Delivery(TraceState.FAILED, reason, kept.file, kept.file_bytes, is_kept=True)
    return Delivery(TraceState.WRITTEN, run.note, done.file, done.file_bytes)


def _keep(run: Run, source: Found) -> Delivery:
    return Delivery(TraceState.WRITTEN, run.note, source.path, source.size_bytes, is_kept=True)
