"""``whystuck trace merge``: traces of several ranks as one, to look at in Perfetto."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from whystuck.cli.output import write_file
from whystuck.cli.progress import show_progress
from whystuck.evidence.errors import UsageError
from whystuck.evidence.ranks import MAX_RANK, parse_ranks
from whystuck.safe_text.escaping import show_line

_RANKS = re.compile(r"\s*\d+(?:\s*-\s*\d+)?\s*(?:,\s*\d+(?:\s*-\s*\d+)?\s*)*")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    metavar="FILE",
    help="Where to write the merged trace; packed when its name ends in .gz.",
)
@click.option("--ranks", metavar="LIST", help="Merge these ranks only, e.g. 0,5-7.")
@click.option(
    "--clocks",
    type=click.Choice(["auto", "host"]),
    default="auto",
    show_default=True,
    help="How times are aligned: auto by the ends of collectives, where they tell, else by the "
    "clocks of the hosts.",
)
def merge(*, paths: tuple[str, ...], file: str, ranks: str | None, clocks: str) -> int:
    """Merge the traces of several ranks into one, to look at in Perfetto.

    PATH is a trace, or a folder with a trace of each rank. Processes have the rank in their name,
    and stand in order of ranks; flows and correlations of ranks are kept apart. Open the file at
    https://ui.perfetto.dev; it stays on your machine.

    Exits with 0, or 2 (a path cannot be used, or FILE cannot be written).
    """
    from whystuck.read.traces.merging import describe_clocks, merge_traces, pack, plan_merge

    with show_progress("reading traces") as progress:
        plan = plan_merge(
            paths, _parse_ranks(ranks), by_collectives=clocks == "auto", progress=progress
        )
    _check_output(file, [one.input.place for one in plan.sources])
    with show_progress("merging traces") as progress:
        parts = merge_traces(plan, progress)
        write_file(Path(file), pack(parts) if file.endswith(".gz") else parts)
    lines = [f"note: {gap.what}: {gap.reason}" for gap in plan.gaps]
    lines.append(describe_clocks(plan))
    sys.stderr.write("".join(f"{show_line(line)}\n" for line in lines))
    return 0


def _parse_ranks(text: str | None) -> frozenset[int]:

    if text is None:
        return frozenset()
    if not _RANKS.fullmatch(text) or any(int(one) > MAX_RANK for one in re.findall(r"\d+", text)):
        raise UsageError(f"`{text}` is no list of ranks", hint="e.g. `--ranks 0,5-7`")
    ranks = parse_ranks(re.sub(r"\s", "", text))
    if not ranks:
        raise UsageError(f"`{text}` names no rank", hint="e.g. `--ranks 0,5-7`")
    return ranks


def _check_output(file: str, places: list[str]) -> None:
    for place in places:
        if Path(place).exists() and Path(file).exists() and Path(place).samefile(file):
            raise UsageError(
                f"`{file}` is one of the traces to merge", hint="write to another file"
            )
