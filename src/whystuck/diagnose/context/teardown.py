"""What happened after somebody ended the job is no cause of its end."""

from __future__ import annotations

from dataclasses import replace

from whystuck.diagnose.policy import Policy
from whystuck.evidence.live import ExitRecord, PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.model import Evidence, Incident

_NS_PER_S = 1_000_000_000


def find_teardown_ns(incident: Incident, policy: Policy) -> int:
    """Return when whystuck or somebody else ended the job, as nanoseconds since 1970.

    Args:
        incident: Why the evidence was taken.
        policy: How long after a signal a job may still end because of it.

    Returns:
        0 when nobody did. A job may ignore a signal, as with ``nohup``, and fail much later.
    """
    if incident.killed_ns:
        return incident.killed_ns
    if not incident.outside_signal:
        return 0
    is_near = incident.opened_ns - incident.outside_ns < policy.teardown_s * _NS_PER_S
    return incident.outside_ns if is_near else 0


def set_teardown_apart(evidence: Evidence, teardown_ns: int) -> Evidence:
    """Leave out what ranks and launchers reported after a job was ended.

    Args:
        evidence: All that is known.
        teardown_ns: When the job was ended; with 0 nothing changes.

    Returns:
        The evidence without exceptions and known log lines from then on. Processes that ended
        from then on count as ended by the launcher.
    """
    if not teardown_ns:
        return evidence
    logs = evidence.logs
    rows = _find_first_rows(logs.events, teardown_ns)
    events = tuple(item for item in logs.events if not _is_after(item, teardown_ns, rows))
    return replace(
        evidence,
        exceptions=tuple(
            item for item in evidence.exceptions if not _is_after(item, teardown_ns, rows)
        ),
        exits=tuple(
            replace(item, after_launcher_kill=True) if _ended_after(item, teardown_ns) else item
            for item in evidence.exits
        ),
        logs=replace(logs, events=events),
    )


def _find_first_rows(events: tuple[LogEvent, ...], teardown_ns: int) -> dict[str, int]:
    """Find the first row of each log that whystuck stamped after the teardown began."""
    rows: dict[str, int] = {}
    for event in events:
        if event.time and event.time.is_capture and event.time.ns >= teardown_ns:
            rows[event.artifact] = min(event.row, rows.get(event.artifact, event.row))
    return rows


def _is_after(item: LogEvent | PythonException, teardown_ns: int, rows: dict[str, int]) -> bool:
    if isinstance(item, PythonException) and item.time_ns:
        return item.time_ns >= teardown_ns
    if item.time and item.time.is_capture:
        return item.time.ns >= teardown_ns
    return item.artifact in rows and item.row >= rows[item.artifact]


def _ended_after(item: ExitRecord, teardown_ns: int) -> bool:
    return item.ended_ns >= teardown_ns or (item.source == "launcher log" and not item.ended_ns)
