"""Shows how far traces are: a line for each change, or a table on a terminal."""

from __future__ import annotations

import string
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.evidence.agent import TraceProgress, TraceState
from whystuck.safe_text.escaping import show_line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from whystuck.agent.rpc.nodes import NodeRun

Shown = Mapping[tuple[str, int], Path | str]
"""By node and pid: where the file of a trace was fetched to, or why it was not."""
_PER_REFRESH = 4
_MEGABYTE = 1_000_000
_WITHOUT_DIGITS = str.maketrans("", "", string.digits)


class ChangeLines:
    """Prints a line whenever the state of a trace changes, or why it does not."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._to_stderr = to_stderr
        self._shown: dict[tuple[str, int], str] = {}
        self._failed: set[str] = set()

    def __call__(self, run: NodeRun) -> None:
        """Show what is new of a node."""
        lines = []
        for one in run.traces:
            key = run.node.name, one.pid
            # A reason may tell for how long it has held, and is not news each second for that.
            state = say_state(one).translate(_WITHOUT_DIGITS)
            if self._shown.get(key) != state:
                self._shown[key] = state
                lines.append(f"{_clock()}  {name_trace(run, one)}  {say_state(one)}")
        if run.problem and run.node.name not in self._failed:
            self._failed.add(run.node.name)
            lines.append(f"{_clock()}  node {run.node.name}  {run.problem}")
        text = "".join(f"{show_line(line)}\n" for line in lines)
        if self._to_stderr:
            click.echo(text, nl=False, err=True)
        else:
            write_stdout(encode_for_stdout(text))


class LiveTable:
    """Keeps a table on a terminal up to date."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._runs: dict[str, NodeRun] = {}

    def __call__(self, run: NodeRun) -> None:
        """Show what is new of a node."""
        self._runs[run.node.name] = run
        self._live.update(self._make())

    def _make(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table("rank", "pid", "node", "state", "", box=None, pad_edge=False)
        for run in self._runs.values():
            for one in sorted(run.traces, key=_order):
                rank = str(one.rank) if one.rank >= 0 else "-"
                cells = (rank, str(one.pid), run.node.name, str(one.state), one.reason)
                table.add_row(*(Text(show_line(cell)) for cell in cells))
            if run.problem:
                cells = ("", "", run.node.name, "unknown", run.problem)
                table.add_row(*(Text(show_line(cell)) for cell in cells))
        return table


@contextmanager
def show_changes(*, is_json: bool) -> Iterator[ChangeLines | LiveTable]:
    """Give a function to call with a node whenever something of it has changed."""
    if not sys.stderr.isatty():
        yield ChangeLines(to_stderr=is_json)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, transient=True, refresh_per_second=_PER_REFRESH) as live:
        yield LiveTable(live)


def render_end(runs: Sequence[NodeRun], fetched: Shown) -> list[str]:
    """Return a line for each trace, as they are now, and for each node that told nothing."""
    lines = []
    for run in runs:
        for one in sorted(run.traces, key=_order):
            place = fetched.get((run.node.name, one.pid), one.file)
            is_here = isinstance(place, Path)
            what = say_state(one) if is_here or one.state != TraceState.WRITTEN else "written"
            size = f" ({_say_size(one.file_bytes)})" if one.file_bytes else ""
            where = f": {place}{size}" if place and one.state == TraceState.WRITTEN else ""
            lines.append(f"{name_trace(run, one)}: {what}{where}")
        if run.problem:
            lines.append(f"node {run.node.name}: {run.problem}")
            lines += [f"hint: {run.hint}"] if run.hint else []
    return [show_line(line) for line in lines]


def as_json(runs: Sequence[NodeRun], fetched: Shown) -> list[dict[str, Any]]:
    """Return the nodes with their traces, for a JSON document."""
    import msgspec

    found = []
    for run in runs:
        traces = []
        for one in sorted(run.traces, key=_order):
            place = fetched.get((run.node.name, one.pid))
            fields = msgspec.to_builtins(one)
            if isinstance(place, Path):
                fields["fetched_to"] = str(place)
            elif place:
                fields["fetch_problem"] = place
            traces.append(fields)
        found.append({"node": run.node.name, "problem": run.problem, "traces": traces})
    return found


def name_trace(run: NodeRun, one: TraceProgress) -> str:
    """Say whose trace it is."""
    rank = f"rank {one.rank}" if one.rank >= 0 else "process"
    return f"{rank} (pid {one.pid}, {run.node.name})"


def say_state(one: TraceProgress) -> str:
    """Say how far it is, and why."""
    return f"{one.state}: {one.reason}" if one.reason else str(one.state)


def _say_size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= _MEGABYTE else f"{size_bytes / 1e3:.1f} kB"


def _order(one: TraceProgress) -> tuple[bool, int, int]:
    return one.rank < 0, one.rank, one.pid


def _clock() -> str:
    return time.strftime("%H:%M:%S")
