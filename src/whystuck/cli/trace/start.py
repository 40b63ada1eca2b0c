"""``whystuck trace start``: traces of a job that runs now, without a change to it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whystuck.cli.form_options import format_option
from whystuck.cli.number_range import NumberRange
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.cli.trace.agents import NOTHING_MATCHED, agent_options
from whystuck.cli.trace.order import Order, make_order
from whystuck.cli.trace.show import Shown, as_json, render_end, show_changes
from whystuck.evidence.agent import TraceState
from whystuck.evidence.errors import UsageError, WhystuckError
from whystuck.evidence.private import private_files
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.values import encode_json

if TYPE_CHECKING:
    from whystuck.agent.rpc.discovery import Node
    from whystuck.agent.rpc.nodes import FanOut, NodeRun


NOT_ALL_WRITTEN = 1
SEVERAL_JOBS = "several-jobs"
"""How an agent calls a request that would trace more than one job, of its `ERROR_KINDS`."""
_ACCEPTED = frozenset(
    {TraceState.PENDING, TraceState.WARM_UP, TraceState.COLLECTING, TraceState.WRITING}
)


@click.command()
@click.option("--job", metavar="ID", help="The job: its id, its name, or the pid of its agent.")
@click.option("--ranks", metavar="LIST", help="Only these ranks, e.g. 0,3-5.")
@click.option(
    "--pid", "pids", metavar="PID", type=int, multiple=True, help="Only this process and its ranks."
)
@click.option(
    "--iterations",
    metavar="N",
    type=click.IntRange(1, 10_000),
    help="Trace N optimizer steps, the same ones on all ranks.",
)
@click.option(
    "--duration",
    "duration_s",
    metavar="S",
    type=NumberRange(0.001, 600),
    help="Trace S seconds.  [default: 0.5]",
)
@click.option(
    "--start-at",
    metavar="T",
    help="When: +S seconds from now, seconds since 1970, or a time such as 2026-01-31T12:00:00Z.",
)
@click.option(
    "--roundup",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    help="With --iterations, begin at the next multiple of N.",
)
@click.option("--stacks", is_flag=True, help="Record Python stacks.")
@click.option("--shapes", is_flag=True, help="Record shapes of inputs.")
@click.option("--memory", is_flag=True, help="Ask for allocations, which torch leaves out.")
@click.option(
    "--flops", is_flag=True, help="Record shapes, by which floating-point operations are counted."
)
@click.option("--modules", is_flag=True, help="Record modules, and the stacks they are part of.")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal whether it is the right job.")
@click.option("--wait", is_flag=True, help="Show the states of all traces until they have ended.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=NumberRange(min=1, max=86400),
    default=300.0,
    show_default=True,
    help="Give up what has not begun after S seconds, and do not wait longer.",
)
@click.option(
    "-o", "--output", metavar="DIR|URL", help="Where traces go.  [default: whystuck-trace-TIME]"
)
@format_option("The form of the output.")
@agent_options
def start(*, nodes: list[Node], node_timeout_s: float, **options: Any) -> int:  # noqa: ANN401
    """Trace a running job with Kineto, without a change to it.

    The job runs under `whystuck run`, or has KINETO_USE_DAEMON=1 and an agent on its node. Without
    --job, --pid or --yes, a terminal is asked whether the job found is the one meant.

    Exits with 0 (all written, or without --wait all asked), 1 (some are not), 2 (wrong usage) or 3
    (no process matched).
    """
    from whystuck.agent.ondemand.trace_contents import list_missing
    from whystuck.agent.rpc.nodes import FanOut

    order = make_order(options, nodes)
    for note in list_missing(order.request):
        click.echo(f"note: {show_line(note)}", err=True)
    fan_out = FanOut(nodes, timeout_s=node_timeout_s)
    if not _is_meant(fan_out, is_named=bool(_asked_job() or options["pids"] or options["yes"])):
        click.echo("nothing is traced", err=True)
        return NOT_ALL_WRITTEN
    with show_changes(is_json=order.is_json) as show:
        try:
            done = asyncio.run(_trace(order, fan_out, _News(order, show)))
        except KeyboardInterrupt:
            click.echo(f"hint: `whystuck trace cancel {order.request.id}` gives it up", err=True)
            raise
    return _report(order, done)


def _asked_job() -> str:
    """Return the `--job` of the user, which may have chosen the agent and be spent."""
    return str(click.get_current_context().params.get("job") or "")


def _is_meant(fan_out: FanOut, *, is_named: bool) -> bool:
    """Name the job that would be traced; ask about it on a terminal where nobody has named it."""
    if is_named:
        return True
    found = asyncio.run(fan_out.list_processes())
    entries = [
        one for _, answer in found if not isinstance(answer, WhystuckError) for one in answer
    ]
    jobs = {one.job or str(one.job_number or one.pid): one for one in entries}
    if len(jobs) != 1:
        return True  # of several, or none, the agents say so
    ((name, one),) = jobs.items()
    command = f": {show_line(one.command, 120)}" if one.command else ""
    click.echo(f"job {show_line(name, 80)}{command}", err=True)
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    return not is_terminal or click.confirm("trace it?", default=True, err=True)


@dataclass
class Done:
    """What came of it."""

    runs: list[NodeRun]
    fetched: Shown = field(default_factory=dict)


class _News:
    """Shows what is new of a node: the id first, once something is traced by it."""

    def __init__(self, order: Order, show: Callable[[NodeRun], None]) -> None:
        self._order = order
        self._show = show
        self._is_told = not order.is_waiting
        self._refused: list[NodeRun] = []

    def __call__(self, run: NodeRun) -> None:
        if run.told_kind == SEVERAL_JOBS:
            # Where no node traces anything, that is the error of the command.
            self._refused.append(run)
            return
        if run.traces and not self._is_told:
            self._is_told = True
            click.echo(f"trace {self._order.request.id}", err=True)
        self._show(run)

    def settle(self, runs: Sequence[NodeRun]) -> None:
        """Raise UsageError when each node runs several jobs; otherwise show those that do."""
        if runs and len(self._refused) == len(runs):
            first = self._refused[0]
            where = f"node {first.node.name}: " if len(runs) > 1 else ""
            raise UsageError(f"{where}{first.problem}", hint=first.hint)
        for run in self._refused:
            self._show(run)


async def _trace(order: Order, fan_out: FanOut, news: _News) -> Done:
    until_s = time.monotonic() + order.wait_s
    await fan_out.check_local(order.request)
    request = await fan_out.plan(order.request)
    if not order.is_waiting:
        done = Done(await fan_out.start(request, news))
    else:
        done = Done(await fan_out.trace(request, until_s, news))
    news.settle(done.runs)
    if order.is_waiting and order.folder is not None:
        done.fetched = await _fetch(done.runs, order.folder)
    return done


async def _fetch(runs: list[NodeRun], folder: Path) -> Shown:
    from whystuck.agent.rpc.fetching import fetch_all
    from whystuck.agent.rpc.nodes import RpcTransport

    # As the agents do it: a trace has names of files and of people in it.
    with private_files():
        return await fetch_all(runs, folder, RpcTransport())


def _report(order: Order, done: Done) -> int:
    traces = [one for run in done.runs for one in run.traces]
    problems = [run for run in done.runs if run.problem]
    bad = [place for place in done.fetched.values() if isinstance(place, str)]
    written = sum(one.state == TraceState.WRITTEN for one in traces) - len(bad)
    accepted = sum(one.state in _ACCEPTED for one in traces)
    if order.is_json:
        _write_json(order, done)
    else:
        _write_text(order, done, written, accepted)
    if not traces and not problems:
        click.echo("error: no process matched", err=True)
        click.echo("hint: `whystuck trace list` shows the processes that are known", err=True)
        return NOTHING_MATCHED
    enough = written if order.is_waiting else written + accepted
    # An agent that does not answer may have ranks that are meant, unless all are named and found.
    named = set(order.request.pids)
    is_found = bool(named) and named <= {one.pid for one in traces}
    is_whole = enough == len(traces) and (is_found or not problems)
    return 0 if is_whole else NOT_ALL_WRITTEN


def _write_text(order: Order, done: Done, written: int, accepted: int) -> None:
    total = sum(len(run.traces) for run in done.runs)
    lines = render_end(done.runs, done.fetched) if order.is_waiting else []
    if not total:
        lines = render_end(done.runs, done.fetched)
    elif order.is_waiting:
        lines.append(f"{written} of {total} traces written to {order.output}")
    else:
        lines.append(f"trace {order.request.id} is asked of {accepted} of {total} processes")
    if written or (accepted and not order.is_waiting):
        lines.append(f"whystuck trace analyze {_quote(order.output)}")
    text = "".join(f"{show_line(line)}\n" for line in lines)
    write_stdout(encode_for_stdout(text))


def _quote(text: str) -> str:
    import shlex

    return shlex.quote(text)


def _write_json(order: Order, done: Done) -> None:

    document = {
        "schema_version": 1,
        "id": order.request.id,
        "output": order.output,
        "nodes": as_json(done.runs, done.fetched),
    }
    write_stdout(encode_json(document))
