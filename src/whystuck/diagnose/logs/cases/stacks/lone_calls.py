"""H102 by one rank that waits at a line to which the source beside its stack lets no other come."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.source.guards import is_lone_line
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    make_places,
    select_user_frames,
)
from whystuck.diagnose.algorithms.stacks.positions import Doing, locate, name_call
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import name_ranks

_MAX_COMPARED = 64


def make_lone_calls(view: LogView) -> Iterator[Case]:
    """Make the case of the only rank that waits in a collective, where the others do other work.

    Those that wait elsewhere are compared call by call; who computes may still come to the call of
    the one that waits, unless a condition on the rank keeps all but that one from it.
    """
    samples = [one for one in view.evidence.stacks if not one.worker and one.rank >= 0]
    frames = {one.rank: one.main.frames for one in samples if one.main is not None}
    waiting = [rank for rank in frames if locate(frames[rank]).doing is Doing.COLLECTIVE]
    others = sorted(frames.keys() - set(waiting))
    if len(waiting) != 1 or not others:
        return
    rank, sources = waiting[0], view.evidence.sources
    lone = [
        frame
        for frame in select_user_frames(frames[rank])
        if is_lone_line(frame, rank, others[:_MAX_COMPARED], sources)
    ]
    if not lone:
        return
    yield Case(
        code=codes.EXTRA_COLLECTIVE,
        summary=f"rank {rank} alone comes to {describe_place(lone[0])}, by a condition on the rank,"
        f" and waits there in {name_call(frames[rank])} for {name_ranks(others)}",
        tier=PARTED,
        ranks=(rank,),
        victims=tuple(others),
        where=tuple(make_places(rank, frames[rank], 3)),
        confidence=Confidence.POSSIBLE,
        details={"group": "", "sequence": 0, "ops": {}},
    )
