"""``whystuck trace whatif``: what a job would gain if a part of it were faster."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from whystuck.cli.form_options import format_option
from whystuck.cli.number_range import NumberRange
from whystuck.cli.output import write_file
from whystuck.cli.progress import show_progress
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.cli.trace.options import trace_options
from whystuck.evidence.errors import UsageError
from whystuck.evidence.traces.options import Lever

if TYPE_CHECKING:
    from whystuck.read.traces.plan import ReadPlan

_CLASSES = ("host", "launch", "compute", "comm", "memory")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only of this rank; all of its own time when nothing else is chosen. "
    "Can be given more than once, as all that choose.",
)
@click.option(
    "--class", "classes", type=click.Choice(_CLASSES), multiple=True, help="A kind of work."
)
@click.option("--kernel", metavar="REGEX", help="Work of devices whose name this finds.")
@click.option("--op", metavar="REGEX", help="Ops and annotations whose name this finds.")
@click.option("--input", "is_input", is_flag=True, help="Waits for the next batch.")
@click.option("--comm", "is_comm", is_flag=True, help="Transfers: `--class comm`.")
@click.option("--link", "links", metavar="GROUP", multiple=True, help="Transfers of this group.")
@click.option(
    "--faster",
    type=NumberRange(0, 100, min_open=True),
    metavar="PERCENT",
    help="By how much; 100 takes it away.  [default: 10]",
)
@click.option(
    "--overlay",
    metavar="FILE",
    help="Write the trace (one rank) to FILE, with its critical path drawn in.",
)
@format_option("The form of the answer.", "form")
@click.option("-o", "--output", metavar="FILE", help="Write the answer to FILE instead of stdout.")
@trace_options
def whatif(
    *,
    paths: tuple[str, ...],
    faster: float | None,
    overlay: str | None,
    form: str,
    output: str | None,
    plan: ReadPlan,
    **chosen: Any,  # noqa: ANN401 - what is to be faster, as click gives it
) -> int:
    """Tell what a job would gain if a part of it were faster.

    The graph of each rank is replayed with other weights, and collectives go on when their last
    rank has come. What is chosen is taken together: `--class compute --rank 3` is the compute of
    rank 3, `--input --comm` are both. Without a choice, common levers are listed by what they
    gain.

    Exits with 0, or with 2 when a path cannot be used or no trace can be read.
    """
    from whystuck.pipeline import read_traces
    from whystuck.report.whatif import render_whatif_json, render_whatif_text
    from whystuck.tracing.whatif.tables import TABLES

    lever = _make_lever(0.1 if faster is None else faster / 100, **chosen)
    is_chosen = bool(lever.ranks) or not lever.is_all
    if faster is not None and not is_chosen:
        raise UsageError("nothing is chosen to be faster", hint="e.g. `--class comm`, `--rank 3`")
    levers = (lever,) if is_chosen else ()
    options = msgspec.structs.replace(plan.options, tables=TABLES, only_tables=True, levers=levers)
    with show_progress("reading traces") as progress:
        read = read_traces(paths, replace(plan, options=options), progress=progress)
    _check_ranks(lever.ranks, [header.rank for header in read.summary.ranks])
    render = render_whatif_json if form == "json" else render_whatif_text
    text = render(read.summary, read.gaps)
    if overlay is not None:
        _draw(paths, lever.ranks, overlay, plan)
    if output is None:
        write_stdout(encode_for_stdout(text))
    else:
        write_file(Path(output), text.encode())
    return 0


def _make_lever(
    share: float,
    *,
    ranks: tuple[int, ...],
    classes: tuple[str, ...],
    kernel: str | None,
    op: str | None,
    is_input: bool,
    is_comm: bool,
    links: tuple[str, ...],
) -> Lever:

    lever = Lever(
        name="all of its own time",
        share=share,
        classes=tuple(dict.fromkeys((*classes, *(("comm",) if is_comm else ())))),
        kernel=_check_pattern("--kernel", kernel),
        op=_check_pattern("--op", op),
        is_input=is_input,
        links=links,
        ranks=tuple(sorted(set(ranks))),
    )
    return msgspec.structs.replace(lever, name=_describe(lever))


def _check_pattern(option: str, pattern: str | None) -> str:
    try:
        re.compile(pattern or "")
    except re.error as problem:
        raise UsageError(
            f"`{pattern}` is no regular expression: {problem}", hint=f"e.g. `{option} '^nccl'`"
        ) from problem
    if pattern == "":
        raise UsageError(f"`{option}` is empty", hint="it would find every name")
    return pattern or ""


def _describe(lever: Lever) -> str:
    parts = [*lever.classes]
    parts += [f"kernel {lever.kernel}"] if lever.kernel else []
    parts += [f"op {lever.op}"] if lever.op else []
    parts += ["input"] if lever.is_input else []
    parts += [f"link {link}" for link in lever.links]
    return " + ".join(parts) or lever.name


def _check_ranks(asked: tuple[int, ...], there: list[int]) -> None:
    for rank in asked:
        if rank not in there:
            known = ", ".join(str(one) for one in there[:8])
            raise UsageError(f"there is no trace of rank {rank}", hint=f"there are {known}")


def _draw(paths: tuple[str, ...], ranks: tuple[int, ...], place: str, plan: ReadPlan) -> None:
    from whystuck.read.traces.overlay import write_overlay

    with show_progress("drawing the critical path"):
        write_overlay(paths, ranks, place, plan.options)
