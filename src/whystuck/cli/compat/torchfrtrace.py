"""The options of ``whystuck fr``: those of torchfrtrace in its spelling, and a few of ours."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from whystuck.cli.adding import add_options
from whystuck.diagnose.summaries.ops_view import ALL, MISMATCH_CAP, View
from whystuck.evidence.errors import UsageError
from whystuck.evidence.ranks import MAX_RANK, parse_ranks

# How many ops of each group are shown: around the divergence in a report, at the end in a table.
_LAST_IN_REPORT = 8
_LAST_IN_TABLE = 20
_RANKS = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*")
_MAX_DIGITS = 9
_RANK_OPTIONS = {"--selected-ranks", "--selected_ranks"}
_FILTER_OPTIONS = {"--pg-filters", "--pg_filters"}


@dataclass(frozen=True)
class RecorderOptions:
    """What ``whystuck fr`` was asked for, apart from the form of the output."""

    paths: tuple[str, ...]
    prefix: str = ""
    just_print: bool = False
    verbose: bool = False
    replica_size: int = 0
    view: View = field(default_factory=View)
    notes: tuple[str, ...] = ()


class RecorderCommand(click.Command):
    """A command two of whose options take several words each, as argparse has it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat such an option before each of its words, which is what click understands."""
        try:
            return super().parse_args(ctx, repeat_options(args))
        except click.UsageError as problem:
            # An option without its argument does not know where it was given; the hint needs it.
            problem.ctx = problem.ctx or ctx
            raise


def repeat_options(args: list[str]) -> list[str]:
    """Write ``--selected-ranks 0 1`` as ``--selected-ranks 0 --selected-ranks 1``.

    A word that is no rank ends the list. A filter can be any word, so that the last one is taken
    for the folder when it is one and no other is given.
    """
    made: list[str] = []
    option, taken = "", 0
    for word in args:
        if word in _RANK_OPTIONS | _FILTER_OPTIONS:
            option, taken = word, 0
            continue
        if word.startswith("-") or (option in _RANK_OPTIONS and not _RANKS.fullmatch(word)):
            if option and not taken:
                made.append(option)
            option = ""
        if option:
            taken += 1
            made += [option, word]
        else:
            made.append(word)
    if option and not taken:
        made.append(option)
    return _free_folder(made)


def _free_folder(args: list[str]) -> list[str]:
    is_last_filter = len(args) > 1 and args[-2] in _FILTER_OPTIONS
    if is_last_filter and Path(args[-1]).exists() and not _has_path(args[:-2]):
        return [*args[:-2], args[-1]]
    return args


def _has_path(args: list[str]) -> bool:
    """Tell whether a word that is no option and does not follow one names something on disk."""
    return any(
        not word.startswith("-") and Path(word).exists() and not before.startswith("-")
        for before, word in zip(["", *args], args, strict=False)
    )


class _Last(click.ParamType[int]):
    name = "N|all"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Turn ``all`` or a number above 0 into a number; ``all`` is 0."""
        text = str(value)
        if text.lower() == "all":
            return ALL
        if not text.isdecimal() or not 0 < len(text) <= _MAX_DIGITS or int(text) < 1:
            self.fail(f"`{text}` is neither `all` nor a number above 0", param, ctx)
        return int(text)


_OPTIONS = (
    click.option(
        "-j",
        "--just_print_entries",
        "--just-print-entries",
        "just_print",
        is_flag=True,
        help="Print what the ranks recorded, one row an op, and judge nothing.",
    ),
    click.option(
        "--last",
        type=_Last(),
        help=f"Ops of each group to show [default: {_LAST_IN_TABLE} with -j, "
        f"else {_LAST_IN_REPORT}].",
    ),
    click.option(
        "--selected-ranks",
        "--selected_ranks",
        "selected_ranks",
        multiple=True,
        metavar="R [R...]",
        help="Show ops of these ranks only, e.g. 0 1 or 0-3,8.",
    ),
    click.option(
        "--pg-filters",
        "--pg_filters",
        "pg_filters",
        multiple=True,
        metavar="F [F...]",
        help="Show ops of the groups with these names or descriptions only.",
    ),
    click.option(
        "--print_stack_trace",
        "--print-stack-trace",
        "stacks",
        is_flag=True,
        help="Show the whole call stack of each op.",
    ),
    click.option(
        "--mismatch_cap",
        "--mismatch-cap",
        "mismatch_cap",
        type=click.IntRange(min=0),
        default=MISMATCH_CAP,
        show_default=True,
        help="How many ops that members do not agree on are listed for each group.",
    ),
    click.option(
        "-p",
        "--prefix",
        help="Read only files with this text, followed by a number, in their name.",
    ),
    click.option(
        "--allow-incomplete-ranks",
        "--allow_incomplete_ranks",
        "allow_incomplete",
        is_flag=True,
        help="Accepted and not needed: what is there is judged, what is missing is said.",
    ),
    click.option(
        "--transform-ft",
        "--transform_ft",
        "transform_ft",
        is_flag=True,
        help="Dumps of torchft: give each replica group ranks of its own.",
    ),
    click.option(
        "--group-world-size",
        "--group_world_size",
        "replica_size",
        type=click.IntRange(min=1),
        metavar="N",
        help="Ranks in one replica group; needed with --transform-ft.",
    ),
    click.option("-v", "--verbose", is_flag=True, help="Tell on stderr what was read."),
)


def recorder_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options to a command, which gets them as the argument ``asked``."""

    @functools.wraps(command)
    def with_options(
        *args: Any,  # noqa: ANN401 - the command's own arguments
        paths: tuple[str, ...],
        just_print: bool,
        last: int | None,
        selected_ranks: tuple[str, ...],
        pg_filters: tuple[str, ...],
        stacks: bool,
        mismatch_cap: int,
        prefix: str | None,
        allow_incomplete: bool,  # noqa: ARG001 - always allowed
        transform_ft: bool,
        replica_size: int | None,
        verbose: bool,
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> int:
        notes = []
        if replica_size is not None and not transform_ft:
            notes.append("`--group-world-size` does nothing without `--transform-ft`")
        default = _LAST_IN_TABLE if just_print else _LAST_IN_REPORT
        asked = RecorderOptions(
            paths=paths,
            prefix=prefix or "",
            just_print=just_print,
            verbose=verbose,
            replica_size=_find_replica_size(replica_size, transform_ft=transform_ft),
            view=View(
                last=default if last is None else last,
                ranks=_read_ranks(selected_ranks),
                groups=pg_filters,
                stacks=stacks,
                mismatch_cap=mismatch_cap,
            ),
            notes=tuple(notes),
        )
        return command(*args, asked=asked, **kwargs)

    return add_options(with_options, _OPTIONS)


def _find_replica_size(replica_size: int | None, *, transform_ft: bool) -> int:
    if not transform_ft:
        return 0
    if replica_size is None:
        raise UsageError(
            "`--transform-ft` needs the number of ranks in a replica group",
            hint="add `--group-world-size N`",
        )
    return replica_size


def _read_ranks(words: tuple[str, ...]) -> tuple[int, ...]:
    for word in words:
        if not _RANKS.fullmatch(word):
            raise UsageError(
                f"`{word}` is not a rank", hint="write ranks as 0 1 2, or as sets such as 0-3,8"
            )
        for part in word.split(","):
            first, _, last = part.partition("-")
            if last and int(last) < int(first):
                raise UsageError(
                    f"`{part}` is no range of ranks", hint="write the smaller rank first, as in 0-3"
                )
            if int(last or first) > MAX_RANK:
                raise UsageError(
                    f"`{part}` is too large for a rank", hint=f"the largest rank is {MAX_RANK}"
                )
    return tuple(sorted(rank for word in words for rank in parse_ranks(word)))
