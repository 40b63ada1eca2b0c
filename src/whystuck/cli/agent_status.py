"""``whystuck agent --status``: which agents run here."""

from __future__ import annotations

import os
from pathlib import Path

from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.evidence.agent import AgentRecord

NOT_RUNNING = 3


def show_status(folder: str | None, output_format: str) -> int:
    """Show the agents of this user, or the one of ``folder``; return the exit code."""
    import msgspec

    agents = _find(folder)
    if output_format == "json":
        write_stdout(msgspec.json.format(msgspec.json.encode(agents)) + b"\n")
    else:
        text = "\n".join(_line(one) for one in agents) or "no agent of this user runs here"
        write_stdout(encode_for_stdout(text + "\n"))
    return 0 if agents else NOT_RUNNING


def _find(folder: str | None) -> list[AgentRecord]:
    from whystuck.agent.places import list_agents

    wanted = os.path.abspath(folder) if folder else ""  # noqa: PTH100 - links are kept
    return [one for one in list_agents() if not wanted or one.folder == wanted]


def _line(record: AgentRecord) -> str:
    port = f", TCP port {record.port}" if record.port else ""
    job = f", of the job in {Path(record.job_dir)}" if record.job_dir else ""
    return f"pid {record.pid} serves {record.folder} on {record.node}{port}{job}"
