"""The end of a round: which incident answers for it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from whystuck.evidence.finding import Verdict
from whystuck.evidence.records import IncidentRecord
from whystuck.launch.incidents.incident import Incident
from whystuck.launch.incidents.keeper import IncidentKeeper
from whystuck.launch.processes.outside import OutsideSignal, copy_signal
from whystuck.launch.processes.rank_table import RankTable


@dataclass(frozen=True)
class Ending:
    """How a command ended: its exit code, the signal from outside, and the stall that was open.

    ``was_killed`` is whether whystuck itself ended the job because it was stuck.
    """

    code: int
    outside: OutsideSignal
    stall: Incident | None
    was_killed: bool

    def report(self, keeper: IncidentKeeper, table: RankTable) -> None:
        """Report the end, or complete the report of the stall that it follows from."""
        record = IncidentRecord(
            kind="exit",
            opened_ns=time.time_ns(),
            world_size=table.world_size,
            command_exit=self.code,
        )
        copy_signal(self.outside.as_record(), record)
        if self.code and self.stall is not None and self._follows_from(self.stall, table):
            # The scene of the stall says more than what is left now.
            keeper.drop_exit_scene()
            keeper.end_stall(self.stall, record)
            keeper.say_answer(
                self.stall,
                "the stuck job was ended"
                if self.was_killed
                else "the job ended while it was stuck",
            )
        elif not self.code:
            keeper.close_good_end(record)
        elif self.outside.is_interrupt and (self.outside.is_moving or not table.processes()):
            # The user knows why the job ended, and nothing was wrong before.
            keeper.drop_exit_scene()
        else:
            keeper.close_exit(record)

    def _follows_from(self, stall: Incident, table: RankTable) -> bool:
        if self.was_killed:
            return True
        if self.outside.number:
            # A batch system that ends a job whose ranks only waited had a reason of its own.
            is_waiting = stall.report is not None and stall.report.verdict is Verdict.WAITING
            return self.outside.is_interrupt or not is_waiting
        return stall.is_decided and not table.has_failed_before(stall.record.opened_ns)
