"""The options of ``whystuck run`` for what the ranks record, and what may switch it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from whystuck.cli.adding import add_options
from whystuck.evidence.errors import UsageError
from whystuck.launch.options import (
    DEFAULT_OPS_BUFFER,
    MAX_OPS_BUFFER,
    MAX_SPEC_CHARS,
    MAX_TRACED_LINES,
    MIN_TRACED_LINES,
    SwitchOptions,
)
from whystuck.launch.switch.inspect_spec import check_inspect_spec

_OPTIONS = (
    click.option(
        "--comm",
        type=click.Choice(["on", "off"]),
        default="on",
        show_default=True,
        help="Record every collective, send and receive from the start; "
        "`whystuck switch` changes it later.",
    ),
    click.option(
        "--marks/--no-marks",
        default=False,
        show_default=True,
        help="Mark when each phase of a step begins and ends (data loader, forward, backward, "
        "optimizer, checkpoint) from the start; `whystuck switch` changes it later.",
    ),
    click.option(
        "--mirror-marks",
        "mirrors",
        type=click.Choice(["nvtx", "itt", "mstx"]),
        multiple=True,
        help="Show marks to tools that listen to NVTX, ITT or mstx, too; may be given more than "
        "once.",
    ),
    click.option(
        "--inspect",
        metavar="SPEC",
        default="off",
        show_default=True,
        help="What the ranks look for in tensors from the start, e.g. `finite,weights:every=50`.",
    ),
    click.option(
        "--switch-file",
        metavar="FILE",
        help="A JSON file, of a platform or your own, that switches recording while the job runs; "
        "it is looked at twice a second.",
    ),
    click.option(
        "--ops-buffer",
        metavar="N",
        type=click.IntRange(min=64, max=MAX_OPS_BUFFER),
        default=DEFAULT_OPS_BUFFER,
        show_default=True,
        help="Collectives, sends and receives that each rank keeps; 96 bytes each.",
    ),
    click.option(
        "--trace-lines",
        metavar="N",
        type=click.IntRange(min=MIN_TRACED_LINES, max=MAX_TRACED_LINES),
        help="Keep the last N lines of your code that each thread executed. Costs about a "
        "microsecond a line; the report says how much that was.  [default: off]",
    ),
)


def switch_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add these options to a command, which gets them as the argument ``switch``."""

    @functools.wraps(command)
    def with_switch(
        *args: Any,  # noqa: ANN401 - the command's own
        comm: str,
        marks: bool,
        mirrors: tuple[str, ...],
        inspect: str,
        switch_file: str | None,
        ops_buffer: int,
        trace_lines: int | None,
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> int:
        if len(inspect) > MAX_SPEC_CHARS:
            raise UsageError(
                f"the SPEC of `--inspect` has more than {MAX_SPEC_CHARS} characters",
                hint="one `stats`, `finite` or `weights` item is about all tensors",
            )
        check_inspect_spec(inspect or "off")
        options = SwitchOptions(
            comm=comm,
            marks="on" if marks else "off",
            inspect=inspect or "off",
            file=Path(switch_file) if switch_file else None,
            ops_buffer=ops_buffer,
            trace_lines=trace_lines or 0,
            mirrors=mirrors,
        )
        return command(*args, switch=options, **kwargs)

    return add_options(with_switch, _OPTIONS)
