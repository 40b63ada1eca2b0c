"""How a round ended, from what its ranks have left."""

from __future__ import annotations

from whystuck.evidence.finding import Report
from whystuck.launch.output.rank_logs import RankLogs
from whystuck.launch.processes.rank_table import RankTable
from whystuck.launch.restarts.ending import RoundEnd, find_root_cause
from whystuck.launch.restarts.leftovers import list_leftovers
from whystuck.launch.restarts.progress import NO_STEP, find_printed_step

_STEP_TAIL_BYTES = 64 << 10


def describe_round(
    code: int, number: int, report: Report | None, table: RankTable, logs: RankLogs
) -> RoundEnd:
    """Return how a round ended, and what its last report says of why."""
    if not code:
        return RoundEnd(0, round=number)
    texts = [logs.read_tail(one, _STEP_TAIL_BYTES) for one in table.processes()]
    printed = max((find_printed_step(text) for text in texts), default=NO_STEP)
    cause, steps = find_root_cause(report), table.find_most_steps()
    left = list_leftovers(table.all_pids())
    return RoundEnd(code, cause, steps, printed, round=number, left=left)
