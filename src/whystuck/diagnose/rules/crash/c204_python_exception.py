"""C204 python-exception."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.departures import describe_departure
from whystuck.diagnose.algorithms.stacks.frames import describe_place, make_places
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import LogRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.diagnose.rules.crash.c205_same_exception_everywhere import (
    has_common_exception,
    list_roots,
)
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.live import PythonException
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_LAUNCHER = "launcher log"


class PythonExceptionRule(LogRule):
    """A rank failed with a Python exception; its peers only lost their connections.

    ## What it means

    One rank raised, or ended itself with an exit code, and took the job down. What the other
    ranks print ("Connection closed by peer", time limits) only follows from it.

    ## How it is found

    Uncaught exceptions of all ranks, without those that only say that a peer is gone or late, and
    without those of which another rule tells. The innermost line of the user's code in the
    traceback is named; of an error in a data-loader worker that is the line in the worker. Clocks
    of whole seconds do not decide which rank failed first.

    A rank that called `MPI_Abort`, as MPI tells, is named here too where no exception or crash is
    known: MPI tells who, and no reason.

    In logs, tracebacks of all ranks are brought together by type, message and line. A rank that
    went on after its traceback caught it. A traceback without a rank is given to the one rank
    that the launcher saw end with a code, when there is just one. Where all ranks of one host, and
    no others, raised it, the host is named.

    An exception that ended a thread other than the main one is told where its rank raised nothing
    else: as `likely` where others then waited for that rank until a time limit, else as `possible`.
    Where a stack shows that the rank waits for its threads, it is H120.

    In `details`: `exception` is its type, `message` what it says; `exit_code` where there was no
    traceback, and `call` where the rank ended itself by a call such as `sys.exit` or `os._exit`,
    whose line is named.

    ## False alarms

    An exception that only a log holds may have been caught, and the rank ended otherwise.

    ## What to do

    Fix the exception at the line named. Data of that rank alone is a common cause.
    """

    code = codes.PYTHON_EXCEPTION
    name = "python-exception"
    end_class = "computation-error"
    loss_effect = LossEffect.RAISED
    remedies: ClassVar[tuple[str, ...]] = (
        "fix the exception at the named line; errors of the other ranks follow from it",
    )

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for the ranks that failed by themselves."""
        if not scene.story.view.has_records:
            return
        if (
            scene.divergences.is_wire_mismatch
            or scene.suspects.explained
            or has_common_exception(scene)
        ):
            return
        if list_roots(scene):
            yield from self._check_exceptions(scene, policy)
        elif not scene.exits.root_exceptions:
            yield from self._check_exits(scene, policy)

    def _check_exceptions(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        roots = list_roots(scene)
        ranks = sorted(rank for rank in roots if rank >= 0)
        where = [
            place
            for rank in ranks
            for place in make_places(rank, roots[rank].frames, policy.places_per_rank)
        ]
        item = roots[ranks[0]] if ranks else next(iter(roots.values()))
        message = item.message.splitlines()[0] if item.message else ""
        who = name_ranks(ranks) if ranks else "a rank"
        place = f" in {describe_place(where[0])}" if where else ""
        yield self.make_finding(
            f"{who} raised {item.type}: {message[:160]}{place}",
            Confidence.CERTAIN if ranks and _is_one([*roots.values()]) else Confidence.LIKELY,
            Blame(ranks=ranks, victims=scene.ranks.victims, where=where),
            because=[
                Citation(f"uncaught {root.type} of rank {rank}", root.artifact)
                for rank, root in roots.items()
            ],
            details={"exception": item.type, "message": message},
        )

    def _check_exits(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Look for ranks that ended themselves with a code, without an exception."""
        if scene.exceptions.timed_out or scene.exits.crash_signals:
            return
        ranks = sorted(
            rank
            for rank in scene.exits.failed_ranks
            if scene.exits.by_rank[rank].code and rank not in scene.exceptions.by_rank
            if rank not in scene.exits.killed_ranks
        )
        # Without any word of the others, the same code everywhere blames nobody.
        if not ranks or (len(ranks) > 1 and not scene.exceptions.cut_ranks):
            return
        code = scene.exits.by_rank[ranks[0]].code
        has_own = all(scene.exits.by_rank[rank].source != _LAUNCHER for rank in ranks)
        where = [
            place
            for rank in ranks
            for place in make_places(rank, _find_frames(scene, rank), policy.places_per_rank)
        ]
        departure = scene.exits.departures.get(ranks[0]) if len(ranks) == 1 else None
        how = describe_departure(departure)
        yield self.make_finding(
            f"{name_ranks(ranks)} ended itself with exit code {code}{how}, without a traceback",
            # Of a rank of which only its launcher tells, a traceback may be missing.
            Confidence.LIKELY if has_own else Confidence.POSSIBLE,
            Blame(ranks=ranks, victims=scene.ranks.victims, where=where),
            because=[
                Citation(
                    f"rank {rank} ended with code {scene.exits.by_rank[rank].code}",
                    scene.exits.by_rank[rank].artifact,
                )
                for rank in ranks
            ]
            + [
                Citation(f"rank {rank} called {item.call}({item.status})", item.artifact)
                for rank, item in scene.exits.departures.items()
                if rank in ranks
            ],
            details={"exit_code": code} | ({"call": departure.call} if departure else {}),
        )


def _find_frames(scene: Scene, rank: int) -> tuple[Frame, ...]:
    """Return the call by which a rank ended itself, else where it was seen last."""
    departure = scene.exits.departures.get(rank)
    return departure.frames if departure else scene.exits.find_last_frames(rank)


def _is_one(roots: Sequence[PythonException]) -> bool:
    """Return whether all ranks raised one exception: of different ones, one may follow another."""
    return len(roots) == 1 or (bool(roots[0].type) and len({_sign(item) for item in roots}) == 1)


def _sign(item: PythonException) -> tuple[str, tuple[Frame, ...]]:
    return item.type, item.frames[:1]
