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
from whystuck.diagnose.logs.cases.parts import WAITS, is_said
from whystuck.diagnose.logs.cases.transfers.stacked_receives import list_stacked_receives
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_PAIR = 2
_RECEIVES = {"recv", "recvanysource"}
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
    gave_up = _list_gave_up(view)
    # Who waited in vain until a time limit waits for nothing that is under way.
    has_limit = bool(waits) and all(one.rank in gave_up for one in waits)
    past = [rank for rank, position in at.items() if _is_past(position, is_waiting=not has_limit)]
    if len(at) != _PAIR or len(waits) != 1 or len(past) != 1:
        return
    wait, rank = waits[0], past[0]
    said = _find_left_out(view, rank, wait.what)
    is_next = (rank > wait.rank) == (wait.what == "grad")
    # Of more stages, another one may be its neighbour, unless this one says what it left out.
    is_whole = at.keys() == view.ranks or (said is not None and abs(rank - wait.rank) == 1)
    if not is_whole or not is_next or wait.peer not in (-1, rank):
        return
    why = "the two run different numbers of them"
    if said is not None:
        why = f"it left one out, as it says: `{said.text.strip():.100}`"
    what = "a gradient" if wait.what == "grad" else "an activation"
    yield Case(
        code=codes.P2P_UNMATCHED,
        summary=f"{name_ranks([wait.rank])} waits to receive {what} from {name_ranks([rank])}, "
        f"which is past all micro-batches of the step already, in {_name(at[rank])}: "
        f"{why}",
        tier=PARTED - 1,
        ranks=(rank,),
        victims=(wait.rank,),
        lines=(said,) if said is not None else (),
        where=tuple(make_places(rank, at[rank].frames, _PAIR)),
        confidence=Confidence.LIKELY,
        details={"pair": [wait.rank, rank], "op": "recv", "waiting_rank": wait.rank},
        cites=(Citation(f"rank {wait.rank} is in a receive", wait.artifact, wait.row or None),),
        remedies=("print the number of micro-batches on all stages: it has to be one number",),
    )


def _name(position: Position) -> str:
    is_call = position.doing is Doing.COLLECTIVE
    return name_call(position.frames) if is_call else name_function(position.frames[0])


def _find_left_out(view: LogView, rank: int, what: str) -> LogEvent | None:
    """Return the last line of a rank that says that it left out such a micro-batch."""
    told = [
        event
        for event in view.list_signatures("table.transfer")
        if event.rank == rank and is_said(event)
    ]
    left = [one for one in told if one.groups["state"] == "left out" and one.groups["what"] == what]
    return left[-1] if left else None


def _list_gave_up(view: LogView) -> set[int]:
    """Return the ranks whose receive came to a time limit."""
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    return {one.rank for one in waits if (one.groups.get("op") or "").lower() in _RECEIVES}


def _is_past(position: Position, *, is_waiting: bool) -> bool:
    """Tell whether a rank is behind the last micro-batch of its step, and waits there if it must.

    People cut what is called inside: then the innermost frame is a function of that name.
    """
    if is_transferring(position.frames):
        return False
    names = [name_function(one).lower() for one in position.frames if is_user_frame(one)]
    is_cut = not is_waiting and bool(_BEHIND.search(name_function(position.frames[0]).lower()))
    return is_cut or (position.doing is Doing.COLLECTIVE and any(map(_BEHIND.search, names)))
