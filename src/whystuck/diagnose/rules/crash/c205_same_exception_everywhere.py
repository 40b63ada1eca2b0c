"""C205 same-exception-everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import name_known
from whystuck.diagnose.algorithms.stacks.frames import describe_place, find_user_frame, make_places
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import LogRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.live import PythonException


def list_roots(scene: Scene) -> dict[int, PythonException]:
    """Return the exceptions that ended ranks, but for those of which a case of logs tells more."""
    told = {case.code for case in scene.story.cases} - {
        codes.PYTHON_EXCEPTION,
        codes.SAME_EXCEPTION_EVERYWHERE,
        codes.PEER_LOST,
    }
    return {
        rank: item
        for rank, item in scene.exits.root_exceptions.items()
        if name_known(item) not in told
    }


def has_common_exception(scene: Scene) -> bool:
    """Tell whether several ranks raised one exception at one place, and no rank another."""
    roots = list_roots(scene)
    places = {
        (item.type, frame.file if frame else "", frame.line if frame else 0)
        for item in roots.values()
        for frame in (find_user_frame(item.frames),)
    }
    if len(roots) < 2 or len(places) != 1:  # noqa: PLR2004 - one rank alone is that rank's failure
        return False
    silent = scene.ranks.all - set(roots) - set(scene.exceptions.cut_ranks)
    # Ranks that said nothing of their own were taken down, unless they ended well.
    return not any(
        scene.exits.by_rank[rank].code == 0 for rank in silent & set(scene.exits.by_rank)
    )


class SameExceptionEverywhere(LogRule):
    """All ranks failed with the same exception at the same line: code or configuration.

    ## What it means

    No rank is special: the program, its arguments or its environment are wrong.

    ## How it is found

    Several ranks raised an exception of one type at one line of the user's code; the others, if
    any, only lost their connections or were ended by the launcher. In logs, the same traceback
    printed more than once without a rank counts too: torch adds the rank only after
    `init_process_group`.

    In `details`: `ranks` raised it, `exception` is its type, `message` what it says.

    ## False alarms

    Data that is broken for all ranks alike, a full disk that they share, a service that is down.

    ## What to do

    Fix the line named; a run with one process is enough to see the error.
    """

    code = codes.SAME_EXCEPTION_EVERYWHERE
    name = "same-exception-everywhere"
    end_class = "computation-error"
    loss_effect = LossEffect.RAISED
    remedies: ClassVar[tuple[str, ...]] = (
        "fix the named line or the configuration it reads: a run with one process shows the error",
    )

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding without a culprit when the exception is the same everywhere."""
        if not scene.story.view.has_records:
            return
        if scene.divergences.is_wire_mismatch or not has_common_exception(scene):
            return
        roots = list_roots(scene)
        ranks = sorted(roots)
        item = roots[ranks[0]]
        message = item.message.splitlines()[0] if item.message else ""
        where = make_places(ranks[0], item.frames, policy.places_per_rank)
        place = f" in {describe_place(where[0])}" if where else ""
        yield self.make_finding(
            f"{len(ranks)} of {len(scene.ranks.all)} ranks raised the same {item.type}: "
            f"{message[:160]}{place}",
            Confidence.CERTAIN,
            Blame(victims=scene.ranks.victims, where=where),
            because=[
                Citation(f"uncaught {roots[rank].type} of rank {rank}", roots[rank].artifact)
                for rank in ranks
            ],
            details={"ranks": ranks, "exception": item.type, "message": message},
        )
