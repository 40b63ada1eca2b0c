"""Of what kind a log is, by one of its lines."""

from __future__ import annotations

import re

_EVENT = re.compile(r"^(?:\S+)?\s*(?:Normal|Warning)\s+\w+\s+\w+/\S+\s|^LAST SEEN\s+TYPE\s+REASON")
_POD = re.compile(r"^(?:Name:|Node:|Namespace:|Containers:|Last State:|Events:)\s*")
_AGENT = re.compile(r"torch/distributed/(?:run|launch|elastic)|torch\.distributed\.(?:run|elastic)")
_SERVICE = re.compile(r"^\[tid \d+\] |\b(?:chronyd|systemd|sshd|nv-hostengine|slurmd)\[\d+\]")
_SCHEDULER = re.compile(r"^(?:sched|slurmctld|_slurm_rpc|backfill|job_complete|error: Node)\b")


def name_kind(text: str, *, is_agent: bool) -> str:
    """Return the kind of log that a line looks to be of; empty for output of a rank."""
    is_event = "Normal" in text or "Warning" in text or "LAST SEEN" in text
    if is_event and _EVENT.match(text):
        return "events"
    if _POD.match(text) or _SCHEDULER.match(text):
        return "scheduler"
    if ("d[" in text or "ne[" in text or text.startswith("[tid ")) and _SERVICE.search(text):
        return "service"
    if is_agent or ("torch" in text and _AGENT.search(text)):
        return "agent"
    return "" if text.strip() else "blank"
