"""Reads op logs and marks: one of each for a rank, the newest where there are several."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic

from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.evidence.ops.log import Ops
from whystuck.evidence.ops.marks import Marks
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.errors import ParseError
from whystuck.parse.ops.clocks import Log, Rates, choose_newest
from whystuck.parse.ops.header import About, LogFile
from whystuck.parse.ops.log import parse_op_log
from whystuck.parse.ops.marks import RankMarks, join_all, merge_marks, parse_mark_states
from whystuck.parse.ops.table import merge_op_logs
from whystuck.read.budget import Budget, Deadline
from whystuck.read.content import read_content

WHAT, MARKS_WHAT = "op log", "marks"
_MIN_PER_RANK = 64
# What an attempt of the launcher left that is known to be an old one needs no word.
_OLD_ATTEMPT = re.compile(
    "(?:^|/)(?:"
    + "|".join(
        name.format(attempt=r"\d+") for name in (records.OLD_OP_LOG_FILE, records.OLD_MARKS_FILE)
    )
    + ")$"
)


@dataclass(frozen=True)
class OpLogFile:
    """What looks like an op log, or like marks; ``rank`` is what its folder or name tells."""

    path: Path
    artifact: str
    rank: int | None


def read_op_logs(
    files: Sequence[OpLogFile],
    marks: Sequence[OpLogFile] = (),
    budget: Budget | None = None,
    *,
    only_used: bool = False,
) -> tuple[Ops, Marks, list[Gap]]:
    """Read the op logs and the marks of all ranks.

    Args:
        files: Op logs, any number for each rank.
        marks: Files of marks, likewise.
        budget: What they may take; their own when left out.
        only_used: Whether groups, forms and sites without an op that is read are passed over.

    Returns:
        Ops and marks, whose times can be compared, and what could not be read.
    """
    gaps: list[Gap] = []
    budget = budget or Budget(Deadline([file.path for file in (*files, *marks)]))
    form = _USED_OPS if only_used else _OPS
    kept, old = choose_newest(_read_all(files, form, budget, gaps))
    kept_marks, old_marks = choose_newest(_join_files(_read_all(marks, _MARKS, budget, gaps)))
    gaps += [
        Gap(rank, artifact, f"{what} of this rank is read")
        for what, passed in (("a newer op log", old), ("a newer file of marks", old_marks))
        for rank, artifact in passed
        if not _OLD_ATTEMPT.search(artifact)
    ]
    rates = Rates([*(file.log for file in (*kept, *kept_marks))])
    return merge_op_logs(kept, rates), merge_marks(kept_marks, rates), gaps


def _join_files(files: Iterator[LogFile[RankMarks]]) -> list[LogFile[RankMarks]]:
    """Join the files of each process; the one that was written last is cited."""
    parts = defaultdict[tuple[int, str, int, int], list[LogFile[RankMarks]]](list)
    for file in sorted(files, key=lambda one: one.log.last_clock.monotonic_ns):
        about, begun = file.log.about, file.log.first_clock.monotonic_ns
        parts[file.rank, about.host, about.pid, begun].append(file)
    return [replace(one[-1], log=join_all([file.log for file in one])) for one in parts.values()]


@dataclass(frozen=True)
class _Format(Generic[Log]):
    what: str
    # How many rows of all ranks are read, of large jobs the newest of each rank.
    rows: int
    parse: Callable[[bytes, int], Log]


def _read_all(
    files: Sequence[OpLogFile], form: _Format[Log], budget: Budget, gaps: list[Gap]
) -> Iterator[LogFile[Log]]:
    newest = max(_MIN_PER_RANK, form.rows // max(1, len(files)))
    for file in files:
        if budget.deadline.is_over:
            budget.leave_out(form.what)
            continue
        try:
            log = form.parse(read_content(file.path, free=budget.free), newest)
            rank = _find_rank(log.about, file)
            if isinstance(log, RankMarks) and log.cut:
                reason = f"{file.artifact}: from one state on it is not read: {log.cut}"
                gaps.append(Gap(rank, form.what, reason))
            yield LogFile(rank, file.artifact, log)
        except ParseError as error:
            gaps.append(Gap(file.rank, form.what, f"{file.artifact}: {error.message}"))
        except OSError as error:
            gaps.append(Gap(file.rank, form.what, f"{file.artifact}: {error.strerror or error}"))


def _find_rank(about: About, file: OpLogFile) -> int:
    rank = about.rank if 0 <= about.rank <= MAX_RANK else file.rank
    if rank is None:
        raise ParseError("which rank it belongs to cannot be told")
    return rank


# An op takes some 700 bytes until its report is made, a mark some 100.
_OPS = _Format(WHAT, 560_000, parse_op_log)
_USED_OPS = replace(_OPS, parse=partial(parse_op_log, only_used=True))
_MARKS = _Format(MARKS_WHAT, 2_097_152, parse_mark_states)
