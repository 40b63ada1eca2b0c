"""``whystuck agent --status``: which agents run here, whom they serve, and what they lack."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.evidence.agent import RPC_SOCKET, AgentRecord, ProcessEntry, ProcessKind
from whystuck.evidence.decoding import convert
from whystuck.evidence.errors import WhystuckError
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.values import encode_json

NOT_RUNNING = 3
_ANSWER_S = 5.0
_MAX_SHOWN = 100
_COMMAND_CHARS = 50


class AgentStatus(msgspec.Struct, kw_only=True):
    """One agent; ``problem`` says why it does not tell the rest."""

    agent: AgentRecord
    problem: str = ""
    cpu_percent: float = 0.0
    rss_bytes: int = -1
    pace: float = 1.0
    processes: list[ProcessEntry] = []
    counts: dict[str, dict[str, int]] = {}
    missing: dict[str, str] = {}


def show_status(folder: str | None, output_format: str) -> int:
    """Show the agents of this user, or the one of ``folder``; return the exit code."""
    agents = asyncio.run(_ask_all(_find(folder)))
    if output_format == "json":
        write_stdout(encode_json(agents))
    else:
        text = "\n".join(_render(one) for one in agents) or "no agent of this user runs here"
        write_stdout(encode_for_stdout(text + "\n"))
    return 0 if agents and not all(one.problem for one in agents) else NOT_RUNNING


def _find(folder: str | None) -> list[AgentRecord]:
    from whystuck.agent.agent_folder import FOLDER_ENV
    from whystuck.agent.agent_list import list_agents

    if not folder:
        return list_agents()
    wanted = os.path.abspath(folder)  # noqa: PTH100 - links are kept
    before = os.environ.get(FOLDER_ENV, "")
    # Those who list agents look there, too.
    os.environ[FOLDER_ENV] = wanted
    try:
        return [one for one in list_agents() if one.folder == wanted]
    finally:
        os.environ[FOLDER_ENV] = before


async def _ask_all(records: list[AgentRecord]) -> list[AgentStatus]:
    return list(await asyncio.gather(*(_ask(one) for one in records)))


async def _ask(record: AgentRecord) -> AgentStatus:
    from whystuck.agent.rpc.client import RpcAddress, call

    address = RpcAddress(path=os.path.join(record.folder, RPC_SOCKET))  # noqa: PTH118
    try:
        told = await call(address, "whystuck.status", {}, timeout_s=_ANSWER_S)
        listed = await call(address, "whystuck.processes", {}, timeout_s=_ANSWER_S)
        return convert({**told, **listed}, AgentStatus)
    except WhystuckError as error:
        return AgentStatus(agent=record, problem=error.message)
    except msgspec.ValidationError as error:
        return AgentStatus(agent=record, problem=f"its answer is not understood: {error}")


def _render(status: AgentStatus) -> str:
    lines = [_title(status.agent)]
    if status.problem:
        return "\n".join([*lines, f"  does not answer: {_clean(status.problem)}"])
    lines.append(_use(status))
    lines += [_line(one) for one in status.processes[:_MAX_SHOWN]]
    if len(status.processes) > _MAX_SHOWN:
        lines.append(f"  and {len(status.processes) - _MAX_SHOWN} more")
    if not status.processes:
        lines.append("  no process has asked for work yet")
    lines += [f"  missing: {_clean(f'{what}: {why}')}" for what, why in status.missing.items()]
    return "\n".join(lines)


def _title(record: AgentRecord) -> str:
    parts = [f"pid {record.pid}", record.folder]
    parts += [f"TCP port {record.port}"] if record.port else []
    parts += [f"metrics at port {record.metrics_port}"] if record.metrics_port else []
    parts += [f"of the job in {record.job_dir}"] if record.job_dir else []
    return _clean(f"agent {record.version} on {record.node}: {', '.join(parts)}")


def _use(status: AgentStatus) -> str:
    slow = f", reads figures {status.pace:g} times less often" if status.pace > 1 else ""
    return f"  uses {status.cpu_percent:.2f} % of a core, {status.rss_bytes / 2**20:.1f} MiB{slow}"


def _line(entry: ProcessEntry) -> str:
    who = entry.kind.value
    if entry.kind is ProcessKind.RANK:
        of = f" of {entry.world_size}" if entry.world_size > 0 else ""
        who = f"rank {entry.rank}{of}"
    parts: list[Any] = [f"  {who:<14} pid {entry.pid:<8} "]
    parts += [f"job {entry.job:<12} "] if entry.job else []
    parts += [f"{entry.steps} steps "] if entry.steps >= 0 else []
    parts += ["tracing "] if entry.is_busy else []
    return _clean("".join([*parts, entry.command[:_COMMAND_CHARS]]))


def _clean(text: str) -> str:

    return show_line(text).rstrip()
