"""The last executed lines as a report shows them: loops folded, culprits first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from whystuck.evidence.executed import ExecutedLine, ExecutedLines
from whystuck.evidence.finding import ExecutedPath, ExecutedRun, Site

# A loop body of more lines is not looked for.
_MAX_PERIOD = 64
_MAX_PATHS = 128
_MAX_RUNS = 200


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
    return [
        ExecutedPath(
            rank=rank,
            thread=thread.name,
            is_main=thread.is_main,
            count=thread.count,
            line_ns=one.line_ns,
            share=_measure_share(one, thread.count, until_ns),
            runs=fold_lines(thread.lines)[-_MAX_RUNS:],
        )
        for _, _, rank, _, one, thread in found[:_MAX_PATHS]
    ]


def _measure_share(recorded: ExecutedLines, count: int, until_ns: int) -> float | None:
    if not recorded.line_ns or until_ns <= recorded.started_ns:
        return None
    return count * recorded.line_ns / (until_ns - recorded.started_ns)


def fold_lines(lines: Sequence[ExecutedLine]) -> list[ExecutedRun]:
    """Fold lines that repeat: each run is some lines, and how many times they were executed.

    Loops are looked for from the end, where things stopped.
    """
    runs: list[ExecutedRun] = []
    single: list[ExecutedLine] = []
    end = len(lines)
    while end:
        period, times = _find_loop(lines, end)
        if times == 1 or not _is_head(lines[end - period : end]):
            single.append(lines[end - 1])
            end -= 1
            continue
        if single:
            runs.append(_make_run(single[::-1], 1))
            single = []
        runs.append(_make_run(lines[end - period : end], times))
        end -= period * times
    if single:
        runs.append(_make_run(single[::-1], 1))
    return runs[::-1]


def _find_loop(lines: Sequence[ExecutedLine], end: int) -> tuple[int, int]:
    """Return the period of the loop that ends here, and how many times it went round; or 1, 1."""
    best = 1, 1
    for period in range(1, min(_MAX_PERIOD, end // 2) + 1):
        body = lines[end - period : end]
        times = 1
        while (
            end - period * (times + 1) >= 0
            and lines[end - period * (times + 1) : end - period * times] == body
        ):
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = period, times
    return best


def _is_head(body: Sequence[ExecutedLine]) -> bool:
    """Tell whether a loop may begin with the first line of a body, not somewhere in the middle."""
    first = body[0]
    own = [one.line for one in body if (one.file, one.function) == (first.file, first.function)]
    return first.line == min(own)


def _make_run(lines: Sequence[ExecutedLine], times: int) -> ExecutedRun:
    return ExecutedRun(times, [Site(line.file, line.line, line.function) for line in lines])
