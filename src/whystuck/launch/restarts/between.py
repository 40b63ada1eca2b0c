"""What is written to the evidence while no round runs: by processes with a deadline.

The process that the user started waits for no file system.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from whystuck.check.apart import start_apart, wait_apart
from whystuck.evidence.private import private_files
from whystuck.launch.incidents.fault_log import FaultLog
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.restarts.ending import RootCause, RoundEnd
from whystuck.launch.restarts.exclude import FOLDER, ExcludedNode, name_node, write_excluded

ENDING_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_WRITE_S = 10.0


@dataclass(frozen=True)
class BetweenRounds:
    """The evidence folder of a job, and the node that writes."""

    root: Path
    node: str

    def write(self, end: RoundEnd, write: Callable[[FaultLog], None]) -> None:
        """Write to the fault log about a round; where that is not possible, nothing is."""

        def work(_tell: object) -> None:
            folder = self._open_folder()
            if end.round >= 0:
                folder.select_round(end.round)
            write(FaultLog(folder))

        _work_apart(work)

    def write_new_round(self, write: Callable[[FaultLog], None]) -> None:
        """Write about a round that never began."""
        _work_apart(lambda _tell: write(FaultLog(self._open_folder())))

    def exclude(self, cause: RootCause) -> Path | None:
        """Put this node on the list of those to keep away from; return where, if it could be."""
        slurm, kubernetes = name_node(os.environ)
        entry = ExcludedNode(
            node=self.node,
            code=cause.code,
            reason=cause.summary,
            time=datetime.now().astimezone().isoformat(timespec="seconds"),
            slurm=slurm,
            kubernetes=kubernetes,
        )
        folder = self.root.absolute() / FOLDER

        def work(tell: Callable[[bytes], None]) -> None:
            with private_files():
                write_excluded(self.root.absolute(), entry)
            tell(b"done")

        return folder if _work_apart(work) else None

    def _open_folder(self) -> EvidenceFolder:
        with private_files():
            return EvidenceFolder(self.root, self.node, with_round=False)


def block_stop() -> None:
    """Let signals that end this process wait until we ask for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)


def is_told_to_stop() -> bool:
    """Return whether a signal waits that ends this process; all are blocked after a job."""
    return bool(find_stop())


def find_stop() -> int:
    """Return the number of such a signal that waits; 0 for none."""
    return min(_list_ending() & signal.sigpending(), default=0)


def wait_for_stop(timeout_s: float) -> bool:
    """Wait for a signal that ends this process; return whether one came."""
    return signal.sigtimedwait(_list_ending(), timeout_s) is not None


def _list_ending() -> set[int]:
    """Return the signals that end us: under nohup, SIGHUP does not."""
    return {one for one in ENDING_SIGNALS if signal.getsignal(one) is not signal.SIG_IGN}


def _work_apart(work: Callable[[Callable[[bytes], None]], None]) -> bool:
    """Do something in a process of its own; return whether it has told that it is done."""
    with suppress(OSError):
        return any(one.lines for one in wait_apart([start_apart(work, _WRITE_S)]))
    return False
