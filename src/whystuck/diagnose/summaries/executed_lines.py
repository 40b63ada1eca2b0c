"""The last executed lines as a report shows them: loops folded, culprits first."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from whystuck.evidence.ops.executed_lines import ExecutedLine, ExecutedLines
from whystuck.evidence.sections import ExecutedPath, ExecutedRun, Site

# A loop body of more lines is not looked for.
_MAX_PERIOD = 64
_MAX_PATHS = 128
_MAX_RUNS = 200
# Lines of all runs that are shown, a loop once: those of the first thread may be all of them.
_MAX_LINES = 100_000


def list_executed(
    recorded: Iterable[ExecutedLines], culprits: Collection[int], until_ns: int = 0
) -> list[ExecutedPath]:
    """Return what threads executed last, the main threads of the culprits first.

    Args:
        recorded: What each rank recorded.
        culprits: The ranks that are named.
        until_ns: When the evidence was taken, in ns since 1970; 0 when that is not known.
    """
    found = [
        (one.rank not in culprits, not thread.is_main, one.rank, number, one, thread)
        for one in recorded
        for number, thread in enumerate(one.threads)
    ]
    found.sort(key=lambda item: item[:4])
    left = _MAX_LINES
    paths = []
    for _, _, rank, _, one, thread in found[:_MAX_PATHS]:
        runs = fold_lines(thread.lines, _MAX_RUNS, left)
        left -= sum(len(run.lines) for run in runs)
        paths.append(
            ExecutedPath(
                rank=rank,
                thread=thread.name,
                is_main=thread.is_main,
                count=thread.count,
                line_ns=one.line_ns,
                share=_measure_share(one, thread.count, until_ns),
                runs=runs,
            )
        )
    return paths


def _measure_share(recorded: ExecutedLines, count: int, until_ns: int) -> float | None:
    if not recorded.line_ns or until_ns <= recorded.started_ns:
        return None
    return count * recorded.line_ns / (until_ns - recorded.started_ns)


def fold_lines(
    lines: Sequence[ExecutedLine], max_runs: int = sys.maxsize, max_lines: int = sys.maxsize
) -> list[ExecutedRun]:
    """Fold lines that repeat: each run is some lines, and how many times they were executed.

    Loops are looked for from the end, where things stopped.

    Args:
        lines: What a thread executed, oldest first.
        max_runs: Return the last runs only.
        max_lines: Return runs of about so many lines, the last ones; a loop counts once.
    """
    if max_lines <= 0:
        return []
    periods, rounds = _find_loops(lines)
    runs: list[ExecutedRun] = []
    single: list[ExecutedLine] = []
    end, left = len(lines), max_lines
    while end and left > 0 and len(runs) < max_runs:
        period, times = periods[end - 1], rounds[end - 1]
        if times == 1 or not _is_head(lines[end - period : end]):
            single.append(lines[end - 1])
            end, left = end - 1, left - 1
            continue
        if single:
            runs.append(_make_run(single[::-1], 1))
            single = []
        runs.append(_make_run(lines[end - period : end], times))
        end, left = end - period * times, left - period
    if single:
        runs.append(_make_run(single[::-1], 1))
    return runs[:max_runs][::-1]


def _find_loops(lines: Sequence[ExecutedLine]) -> tuple[list[int], list[int]]:
    """Return, for each line, the period of the loop that ends there and how often it went round.

    Both are 1 where none ends. Of several, the one that covers most lines is taken, and of those
    the one with the shortest body.
    """
    numbers: dict[ExecutedLine, int] = {}
    line = np.array([numbers.setdefault(one, len(numbers)) for one in lines], dtype=np.int64)
    places = np.arange(len(line))
    period, rounds = np.ones(len(line), dtype=np.int64), np.ones(len(line), dtype=np.int64)
    for body in range(1, min(_MAX_PERIOD, len(line) // 2) + 1):
        # So many lines up to here are those of a body before.
        differs = np.full(len(line), -1, dtype=np.int64)
        differs[:body] = places[:body]
        other = line[body:] != line[:-body]
        differs[body:][other] = places[body:][other]
        times = 1 + (places - np.maximum.accumulate(differs)) // body
        is_better = (times > 1) & (body * times > period * rounds)
        period[is_better], rounds[is_better] = body, times[is_better]
    return period.tolist(), rounds.tolist()


def _is_head(body: Sequence[ExecutedLine]) -> bool:
    """Tell whether a loop may begin with the first line of a body, not somewhere in the middle."""
    first = body[0]
    own = [one.line for one in body if (one.file, one.function) == (first.file, first.function)]
    return first.line == min(own)


def _make_run(lines: Sequence[ExecutedLine], times: int) -> ExecutedRun:
    return ExecutedRun(times, [Site(line.file, line.line, line.function) for line in lines])
