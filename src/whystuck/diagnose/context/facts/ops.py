"""The recorded ops of all ranks: their table, groups, names and places."""

from __future__ import annotations

from dataclasses import dataclass, replace

from whystuck.diagnose.algorithms.failures.causes import is_cascade
from whystuck.diagnose.algorithms.ops.groups import GroupOps, collect_groups, is_active_only
from whystuck.diagnose.algorithms.ops.progress import (
    find_device_ranks,
    find_last_unseen,
    find_oldest,
    find_unrecorded,
    list_ranks,
    mend_done,
    slice_rank,
)
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait
from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.diagnose.context.facts.exceptions import Exceptions
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.finding import Citation
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Collectives, Frame


@dataclass(frozen=True, eq=False, repr=False)
class Ops:
    """The recorded ops of one evidence."""

    evidence: Evidence
    exceptions: Exceptions

    @cached_property
    def recorded_ranks(self) -> frozenset[int]:
        """Ranks whose ops were recorded; a dump of active ops only may hold none of them."""
        table = self.table
        with_rows = frozenset(list_ranks(table))
        if not is_active_only(table):
            return with_rows
        return with_rows | frozenset(dump.rank for dump in table.dumps)

    @cached_property
    def table(self) -> Collectives:
        """The collectives; the last op of a rank whose collective failed counts as not done.

        The recorder retires an op that fails just as one that completes.
        """
        table = mend_done(self.evidence.collectives)
        failed = [rank for rank, item in self.exceptions.by_rank.items() if is_cascade(item)]
        if not failed or not len(table):
            return table
        done = table.done.copy()
        for rank in failed:
            done[slice_rank(table, rank)][-1:] = False
        return replace(table, done=done)

    @cached_property
    def groups(self) -> tuple[GroupOps, ...]:
        """The process groups."""
        return collect_groups(self.table, self.evidence.topology)

    @cached_property
    def unrecorded_ranks(self) -> frozenset[int]:
        """Ranks that use sends and receives which their recorder counts but does not keep."""
        return find_unrecorded(self.table, self.groups)

    @cached_property
    def device_ranks(self) -> frozenset[int]:
        """Ranks whose collectives run on a device, in the order of its queue."""
        return find_device_ranks(self.table)

    def get_site(self, row: int) -> tuple[Frame, ...]:
        """Return the user's frames of the call that issued the op of a row, innermost first."""
        table = self.table
        return select_user_frames(table.sites[int(table.site[row])].frames)

    def name_op(self, row: int) -> str:
        """Return the name of the op of a row."""
        table = self.table
        return table.forms[int(table.form[row])].label

    def name_wait(self, wait: Wait) -> str:
        """Return the name of the op that a rank waits in."""
        return wait.op if wait.row == NO_ROW else self.name_op(wait.row)

    def get_wait_site(self, wait: Wait) -> tuple[Frame, ...]:
        """Return the user's frames of the call that a rank waits in, innermost first."""
        return wait.site if wait.row == NO_ROW else self.get_site(wait.row)

    def cite_wait(self, wait: Wait, text: str = "") -> Citation:
        """Cite the artifact that shows a wait; the text says what it is when left out."""
        number = "" if wait.row == NO_ROW else f" {wait.seq}"
        text = text or (
            f"rank {wait.rank} waits in {self.name_wait(wait)}{number} of group {wait.group.label}"
        )
        return (
            Citation(text, wait.artifact) if wait.row == NO_ROW else self.cite_row(wait.row, text)
        )

    def cite_row(self, row: int, text: str) -> Citation:
        """Cite a row of a flight-recorder dump."""
        table = self.table
        return Citation(text, table.artifacts[int(table.artifact[row])], int(table.row[row]))

    def find_last_site(self, rank: int) -> tuple[Frame, ...]:
        """Return the user's frames of the last op that a rank issued, innermost first."""
        own = slice_rank(self.table, rank)
        return self.get_site(own.stop - 1) if own.stop > own.start else ()

    @property
    def endless_ranks(self) -> frozenset[int]:
        """Ranks of whose ops on devices only the issue is known, not the end."""
        return frozenset(self.last_unseen)

    @cached_property
    def last_unseen(self) -> dict[int, int]:
        """The row of the last op of each rank on a device, where nobody saw its end."""
        return find_last_unseen(self.table)

    @cached_property
    def lost_ranks(self) -> frozenset[int]:
        """Ranks whose dump does not hold their oldest op that is not over: its ring has lost it."""
        table = self.table
        wrapped = {dump.rank for dump in table.dumps if dump.first_record > 0}
        if not is_active_only(table):
            heads = find_oldest(table)
            return frozenset(
                rank for rank in wrapped if heads.get(rank) == slice_rank(table, rank).start
            )
        # A dump of active ops starts late anyway; the counters tell of what is missing.
        status, lost = table.statuses, set()
        for group in self.groups:
            for index in () if group.p2p_by_rank else group.counters:
                rank = int(status.rank[index])
                rows = group.rows_by_rank.get(rank)
                if rows is not None and int(table.seq[rows[0]]) > int(status.completed[index]) + 1:
                    lost.add(rank)
        return frozenset(lost & self.device_ranks)
