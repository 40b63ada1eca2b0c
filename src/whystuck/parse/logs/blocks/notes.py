"""What is found in texts of the size that people paste, which are looked through line by line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from whystuck.parse.logs.blocks.calls.entered_calls import find_entered_calls
from whystuck.parse.logs.blocks.calls.group_notes import find_group_notes
from whystuck.parse.logs.blocks.calls.rank_bars import find_rank_bars
from whystuck.parse.logs.blocks.calls.rank_shapes import find_rank_shapes
from whystuck.parse.logs.blocks.calls.rank_steps import find_rank_batches, find_rank_steps
from whystuck.parse.logs.blocks.calls.skip_guards import find_skip_guards
from whystuck.parse.logs.blocks.machines.compiler_rows import find_compiler_rows
from whystuck.parse.logs.blocks.machines.host_ranks import find_host_ranks
from whystuck.parse.logs.blocks.machines.load_averages import find_load_averages
from whystuck.parse.logs.blocks.machines.process_limits import find_process_limits
from whystuck.parse.logs.blocks.network.p2p_checks import find_p2p_checks
from whystuck.parse.logs.blocks.network.p2p_trials import find_p2p_trials
from whystuck.parse.logs.blocks.rank_notes import find_rank_notes
from whystuck.parse.logs.blocks.rank_tables.rank_hashes import find_rank_hashes
from whystuck.parse.logs.blocks.rank_tables.rank_types import find_rank_types
from whystuck.parse.logs.blocks.stacks.listed_processes import find_listed_processes
from whystuck.parse.logs.blocks.stacks.same_process import find_same_process
from whystuck.parse.logs.blocks.tables.durations import find_durations
from whystuck.parse.logs.blocks.tables.phase_times import find_phase_times
from whystuck.parse.logs.blocks.tables.run_rates import find_run_rates
from whystuck.parse.logs.blocks.tables.step_rates import find_step_rates
from whystuck.parse.logs.blocks.tables.step_times import find_step_times
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.blocks.tables.work_lists import find_work_lists

_FINDERS = (
    find_group_notes,
    find_entered_calls,
    find_rank_types,
    find_step_rates,
    find_work_lists,
    find_durations,
    find_skip_guards,
    find_same_process,
    find_listed_processes,
    find_step_times,
    find_rank_steps,
    find_rank_batches,
    find_rank_bars,
    find_rank_shapes,
    find_run_rates,
    find_rank_notes,
    find_phase_times,
    find_p2p_trials,
    find_p2p_checks,
    find_host_ranks,
    find_compiler_rows,
    find_process_limits,
    find_load_averages,
    find_rank_hashes,
)


def find_notes(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find what a text says of groups, types, work, pace, durations, ranks, and of stacks.

    Args:
        data: The text.
        row: The number of its first line.
    """
    return chain.from_iterable(find(data, row) for find in _FINDERS)
