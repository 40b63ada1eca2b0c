"""``whystuck trace list`` and ``cancel``: the processes that can be traced, and giving one up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from whystuck.cli.form_options import format_option
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.cli.trace.agents import NOTHING_MATCHED, agent_options
from whystuck.cli.trace.show import as_json, render_end
from whystuck.evidence.agent import ENDED
from whystuck.evidence.errors import WhystuckError
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.values import encode_json

if TYPE_CHECKING:
    from whystuck.agent.rpc.discovery import Node
    from whystuck.evidence.agent import ProcessEntry

NOT_ALL = 1
_FORMAT = format_option("The form of the output.")
_Found = list[tuple["Node", "list[ProcessEntry] | WhystuckError"]]


@click.command("list")
@_FORMAT
@agent_options
def list_processes(*, nodes: list[Node], node_timeout_s: float, output_format: str) -> int:
    """Show the processes that agents know, which `whystuck trace start` can trace.

    Exits with 0, 1 (an agent does not answer) or 3 (no process is known).
    """
    from whystuck.agent.rpc.nodes import FanOut

    found = asyncio.run(FanOut(nodes, timeout_s=node_timeout_s).list_processes())
    if output_format == "json":
        _write_json(found)
    else:
        write_stdout(encode_for_stdout("".join(f"{line}\n" for line in _as_text(found))))
    for node, answer in found:
        if isinstance(answer, WhystuckError):
            click.echo(f"error: node {show_line(node.name)}: {show_line(answer.message)}", err=True)
            click.echo(f"hint: {show_line(answer.hint)}", err=True)
    if any(isinstance(answer, WhystuckError) for _, answer in found):
        return NOT_ALL
    return 0 if any(answer for _, answer in found) else NOTHING_MATCHED


def _write_json(found: _Found) -> None:

    nodes = [
        {"node": node.name, "problem": answer.message, "processes": []}
        if isinstance(answer, WhystuckError)
        else {"node": node.name, "problem": "", "processes": answer}
        for node, answer in found
    ]
    write_stdout(encode_json({"schema_version": 1, "nodes": nodes}))


def _as_text(found: _Found) -> list[str]:
    rows = [["rank", "pid", "node", "kind", "steps", "job", "command"]]
    for node, answer in found:
        if isinstance(answer, WhystuckError):
            continue
        for one in answer:
            numbers = [str(value) if value >= 0 else "-" for value in (one.rank, one.steps)]
            state = f"{one.kind}, busy" if one.is_busy else str(one.kind)
            job = one.job or (str(one.job_number) if one.job_number else "-")
            row = [numbers[0], str(one.pid), one.node or node.name, state, numbers[1], job]
            rows.append([*row, one.command])
    rows = [[show_line(cell, 80) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return lines if len(rows) > 1 else ["no process is known"]


@click.command()
@click.argument("request_id", metavar="ID")
@_FORMAT
@agent_options
def cancel(*, request_id: str, nodes: list[Node], node_timeout_s: float, output_format: str) -> int:
    """Give up a trace of `whystuck trace start`, as far as it has not begun.

    Exits with 0, 1 (an agent does not answer) or 3 (no agent knows the trace).
    """
    from whystuck.agent.rpc.nodes import FanOut

    runs = asyncio.run(FanOut(nodes, timeout_s=node_timeout_s).cancel(request_id))
    known = [run for run in runs if run.told_kind != "unknown-trace"]
    if output_format == "json":
        document = {"schema_version": 1, "id": request_id, "nodes": as_json(known, {})}
        write_stdout(encode_json(document))
    else:
        text = "".join(f"{line}\n" for line in render_end(known, {}))
        write_stdout(encode_for_stdout(text))
    if any(one.state not in ENDED for run in known for one in run.traces):
        click.echo("hint: what has begun cannot be taken back, and ends by itself", err=True)
    if not known:
        click.echo(f"error: no agent knows a trace {show_line(request_id)}", err=True)
        click.echo("hint: `whystuck trace start` prints the id", err=True)
        return NOTHING_MATCHED
    return NOT_ALL if any(run.problem for run in known) else 0
