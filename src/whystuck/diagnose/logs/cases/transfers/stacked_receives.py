"""What ranks of a pipeline wait to receive, as their stacks tell.

A comment behind a frame may say from whom, and which micro-batch: `# src=1, mb=6`. Without one, the
name of the function tells whether it is of the forward or of the backward, and so of which side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from whystuck.diagnose.algorithms.stacks.frames import is_user_frame, name_function
from whystuck.diagnose.algorithms.stacks.positions import is_cut_transfer, is_transferring
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.live import ThreadStack
from whystuck.evidence.ranks import MAX_RANK

# Frames of the user in which a comment, or a name, may say what is received.
_NEAR = 3
_RECEIVES = {"recv", "irecv", "recv_object_list"}
_PEER = re.compile(
    r"(?:\b(?:src|source|peer|from|prev|previous|next|of)\s?(?:=|:|is)?\s?|<-\s?|←\s?)"
    r"(?:rank|stage|r|s)?[ _=#:]{0,2}(\d{1,6})\b",
    re.IGNORECASE,
)
_ITEM = re.compile(
    r"\b(?:mb|micro[-_ ]?batch|ubatch|chunk)(?:[-_ ]?id|[-_ ]?idx)?[ =:#_]{0,2}(\d{1,6})\b",
    re.IGNORECASE,
)
_FORWARD = re.compile(r"(?:^|_)(?:act|acts|activation|activations|fwd|forward|hidden|prev)(?:_|$)")
_BACKWARD = re.compile(r"(?:^|_)(?:d?grads?|gradients?|bwd|backward|next)(?:_|$)")


@dataclass(frozen=True)
class StackedReceive:
    """A rank that waits in a receive; ``peer`` and ``item`` are -1 where nothing tells them.

    ``what`` is `act` or `grad`, and empty where nothing tells it.
    """

    rank: int
    peer: int
    item: int
    what: str
    artifact: str
    row: int


def list_stacked_receives(view: LogView) -> Iterator[StackedReceive]:
    """Yield what each rank waits to receive, by its last stack."""
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    for rank, sample in sorted(last.items()):
        main = sample.main
        if main is None or not is_receiving(main):
            continue
        users = [at for at, one in enumerate(main.frames) if is_user_frame(one)][:_NEAR]
        notes = [note for at, note in main.notes if users and at <= users[-1]]
        peers = {int(one[1]) for note in notes if (one := _PEER.search(note))}
        items = {int(one[1]) for note in notes if (one := _ITEM.search(note))}
        peer = min(peers) if len(peers) == 1 else -1
        yield StackedReceive(
            rank,
            peer if peer <= MAX_RANK else -1,
            min(items) if len(items) == 1 else -1,
            _find_what(name_function(main.frames[at]).lower() for at in users),
            sample.artifact,
            sample.row or 0,
        )


def is_receiving(thread: ThreadStack) -> bool:
    """Tell whether a thread is inside a receive."""
    if is_cut_transfer(thread.frames):
        name = name_function(thread.frames[0])
        return "recv" in name and "send" not in name
    inner = [one for one in thread.frames if not is_user_frame(one)]
    return is_transferring(thread.frames) and any(
        name_function(one) in _RECEIVES for one in inner[:_NEAR]
    )


def _find_what(names: Iterator[str]) -> str:
    """Return what is received, by the innermost function whose name tells it."""
    for name in names:
        is_forward, is_backward = bool(_FORWARD.search(name)), bool(_BACKWARD.search(name))
        if is_forward != is_backward:
            return "act" if is_forward else "grad"
    return ""
