"""H110 by stacks: a stage waits to receive from one that is past the pipeline of this step."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import is_user_frame, make_places, name_function
from whystuck.diagnose.algorithms.stacks.positions import (
    Doing,
    Position,
    is_transferring,
    locate,
    name_call,
)
from whystuck.diagnose.logs.cases.transfers.stacked_receives import list_stacked_receives
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.ranks import name_ranks

_PAIR = 2
# What comes behind the last micro-batch of a step: norms of gradients, their sums, the optimizer.
_BEHIND = re.compile(
    r"grad(?:ient)?s?_norm|clip_grad|optimizer|^(?:optim_?)?step$|finalize_model_grads"
    r"|(?:all_?reduce|sync|reduce)_(?:\w{1,24}_)?grad"
)


def make_past_receives(view: LogView) -> Iterator[Case]:
    """Make the case of two stages, of which one waits to receive and the other is in the optimizer.

    All that the first one is sent in a step, the other one sends before it is there.
    """
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    at = {rank: locate(one.main.frames) for rank, one in last.items() if one.main is not None}
    waits = [one for one in list_stacked_receives(view) if one.what]
    past = [rank for rank, position in at.items() if _is_past(position)]
    if len(at) != _PAIR or at.keys() != view.ranks or len(waits) != 1 or len(past) != 1:
        return
    wait, rank = waits[0], past[0]
    is_next = (rank > wait.rank) == (wait.what == "grad")
    if not is_next or wait.peer not in (-1, rank):
        return
    what = "a gradient" if wait.what == "grad" else "an activation"
    yield Case(
        code=codes.P2P_UNMATCHED,
        summary=f"{name_ranks([wait.rank])} waits to receive {what} from {name_ranks([rank])}, "
        f"which is past all micro-batches of the step already, in {name_call(at[rank].frames)}: "
        "the two run different numbers of them",
        tier=PARTED - 1,
        ranks=(rank,),
        victims=(wait.rank,),
        where=tuple(make_places(rank, at[rank].frames, _PAIR)),
        confidence=Confidence.LIKELY,
        details={"pair": [wait.rank, rank], "op": "recv", "waiting_rank": wait.rank},
        cites=(Citation(f"rank {wait.rank} is in a receive", wait.artifact, wait.row or None),),
        remedies=("print the number of micro-batches on all stages: it has to be one number",),
    )


def _is_past(position: Position) -> bool:
    """Tell whether a rank waits for others behind the last micro-batch of its step."""
    names = [name_function(one).lower() for one in position.frames if is_user_frame(one)]
    is_waiting = position.doing is Doing.COLLECTIVE and not is_transferring(position.frames)
    return is_waiting and any(map(_BEHIND.search, names))
