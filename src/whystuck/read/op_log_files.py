"""Reads the files of op logs: one for each rank, the newest where there are several."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.evidence.ops.log import Ops
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.errors import ParseError
from whystuck.parse.ops.log import parse_op_log
from whystuck.parse.ops.table import OpFile, choose_newest, merge_op_logs
from whystuck.read.budget import Budget, Deadline
from whystuck.read.content import FreeBytes, read_content

WHAT = "op log"
# So many ops of all ranks are read, of large jobs the newest of each rank: an op takes some 700
# bytes until its report is made.
_MAX_OPS = 560_000
_MIN_OPS_PER_RANK = 64
# What an attempt of the launcher left that is known to be an old one needs no word.
_OLD_ATTEMPT = re.compile(r"(?:^|/)" + records.OLD_OP_LOG_FILE.format(attempt=r"\d+") + "$")


@dataclass(frozen=True)
class OpLogFile:
    """A file that looks like an op log; ``rank`` is what its folder or name tells."""

    path: Path
    artifact: str
    rank: int | None


def read_op_logs(files: Sequence[OpLogFile], budget: Budget | None = None) -> tuple[Ops, list[Gap]]:
    """Read the op logs of all ranks.

    Args:
        files: The files, any number for each rank.
        budget: What they may take; their own when left out.

    Returns:
        Their ops, and what could not be read.
    """
    gaps: list[Gap] = []
    budget = budget or Budget(Deadline([file.path for file in files]))
    kept, old = choose_newest(_read_all(files, budget, gaps))
    gaps += [
        Gap(rank, artifact, "a newer op log of this rank is read")
        for rank, artifact in old
        if not _OLD_ATTEMPT.search(artifact)
    ]
    return merge_op_logs(kept), gaps


def _read_all(files: Sequence[OpLogFile], budget: Budget, gaps: list[Gap]) -> Iterator[OpFile]:
    newest = max(_MIN_OPS_PER_RANK, _MAX_OPS // max(1, len(files)))
    for file in files:
        if budget.deadline.is_over:
            budget.leave_out(WHAT)
            continue
        try:
            yield _read(file, newest, budget.free)
        except ParseError as error:
            gaps.append(Gap(file.rank, WHAT, f"{file.artifact}: {error.message}"))
        except OSError as error:
            gaps.append(Gap(file.rank, WHAT, f"{file.artifact}: {error.strerror or error}"))


def _read(file: OpLogFile, newest: int, free: FreeBytes) -> OpFile:
    ops = parse_op_log(read_content(file.path, free=free), newest)
    rank = ops.about.rank if 0 <= ops.about.rank <= MAX_RANK else file.rank
    if rank is None:
        raise ParseError("which rank it belongs to cannot be told")
    return OpFile(rank, file.artifact, ops)
