"""C201 process-killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.departures import describe_departure
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.context.memory_facts import find_memory_kill
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import LogRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class ProcessKilled(LogRule):
    """A signal from outside ended a rank; nothing in the job failed before.

    ## What it means

    Somebody or something killed the process: an operator, the out-of-memory killer of the
    kernel, a batch system, or a call of `os.kill` in the job.

    ## How it is found

    The rank ended by SIGKILL, SIGTERM or another signal that is no fault of native code, and no
    rank raised, crashed or ended with an error of its own. Signals that a launcher sends to
    clean up after another failure are left out: it says so in its log (`Sending process 41870
    closing signal SIGTERM`, `forcefully exiting via Signals.SIGKILL`), and a batch system ends a
    step after it says that it does.

    Where the rank sent the signal itself, by `os.kill` or `signal.raise_signal`, the line of that
    call is named, and `details.sender` is `itself`.

    From logs, the ends are those that torchrun, DeepSpeed, srun, mpirun and Kubernetes report.
    Where SIGKILL ended all ranks and no log tells who sent it, the finding is only possible, and so
    it is where a launcher does not tell which rank was killed.

    ## False alarms

    The end of a job by its batch system looks the same; all ranks are then named.

    ## What to do

    Look for the sender: kernel log (`dmesg`) for the out-of-memory killer, the batch system's
    log, and commands of operators.
    """

    code = codes.PROCESS_KILLED
    name = "process-killed"
    end_class = "process-lost"
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "look for the sender: `dmesg -T | grep -i -E 'oom|killed process'`, the log of the "
            "batch system, and `sacct` or `kubectl describe pod`"
        ),
        "if memory ran out, reduce the workers of data loaders or the batch, or raise the limit",
    )

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for ranks that a signal ended first."""
        killed = scene.exits.killed_ranks
        if (
            not killed
            or scene.exits.root_exceptions
            or scene.exits.crash_signals
            or scene.divergences.is_wire_mismatch
        ):
            return
        if scene.exceptions.timed_out or find_memory_kill(scene) is not None:
            return
        ranks = sorted(killed)
        names = " and ".join(sorted(set(killed.values())))
        own = scene.exits.departures.get(ranks[0]) if len(ranks) == 1 else None
        by_whom = f"that it sent itself{describe_departure(own)}" if own else "from outside"
        cited = [Citation(f"rank {own.rank} called {own.call}", own.artifact)] if own else []
        finding = self.make_finding(
            f"{name_ranks(ranks)} ended by {names} {by_whom}; nothing failed before",
            Confidence.CERTAIN if len(ranks) == 1 else Confidence.LIKELY,
            Blame(
                ranks=ranks,
                victims=scene.ranks.victims,
                where=[
                    place
                    for rank in ranks
                    for place in make_places(
                        rank,
                        own.frames if own else scene.exits.find_last_frames(rank),
                        policy.places_per_rank,
                    )
                ],
            ),
            because=[
                Citation(f"rank {rank} ended by {name}", scene.exits.by_rank[rank].artifact)
                for rank, name in killed.items()
            ]
            + cited,
            details={"signal": names, "sender": "itself" if own else "outside"},
        )
        yield replace(finding, remedies=[_LOOK]) if own else finding


_LOOK = "look at the line named: the rank sent the signal itself, and nobody else did"
