"""Which rank departed from its habit, of those whose sends and receives do not meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from whystuck.diagnose.algorithms.ops.call_patterns import CallPattern, has_many_recorders
from whystuck.diagnose.algorithms.ops.pattern_breaks import PatternDivergence
from whystuck.diagnose.algorithms.ops.waits import Wait, find_cycle
from whystuck.diagnose.algorithms.transfers.odd_transfers import OddTransfer, find_odd_transfers
from whystuck.diagnose.algorithms.transfers.peers import Stray, find_strays
from whystuck.diagnose.context.facts.waits import Waits
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Collectives


def find_departed(
    table: Collectives, waits: Waits, learn: Callable[[], Mapping[int, CallPattern]]
) -> tuple[OddTransfer, ...]:
    """Find transfers without a partner, by the op logs of both ranks.

    Args:
        table: All ops.
        waits: Who waits for whom.
        learn: Returns the habits of all ranks; it is called only where a rank waits in a transfer.

    Returns:
        One value for each rank that departed from its habit.
    """
    if has_many_recorders(table):
        return ()
    if not any(wait.is_p2p and wait.missing for wait in waits.pending):
        return ()
    ring = find_cycle(waits.targets_by_rank)
    return find_odd_transfers(table, waits.pending, learn(), ring)


def find_strayed(evidence: Evidence) -> tuple[Stray, ...]:
    """Find the same of ranks without an op log, by what their probes count.

    Args:
        evidence: All that is known.

    Returns:
        One value for each rank that named another peer than ever before.
    """
    logged = {log.rank for log in evidence.ops.logs}
    waits = [one for one in evidence.peer_waits if not {one.rank, one.peer} & logged]
    return find_strays(waits, evidence.peer_counts)


def list_missed(table: Collectives, parted: PatternDivergence) -> tuple[Wait, ...]:
    """Return the waits of the ranks whose transfer lacks its other half.

    Args:
        table: All ops.
        parted: Who left out a half against its habit, and who waits for it.

    Returns:
        One wait for each rank that kept to its habit.
    """
    missing = frozenset(parted.broken)
    rows = ((rank, parted.rows[rank]) for rank in parted.true)
    return tuple(
        Wait(rank, parted.group, int(table.seq[row]), row, missing, is_p2p=True)
        for rank, row in rows
    )
