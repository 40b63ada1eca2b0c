"""Several nodes decide alike: each tells the others how its round ended, and all judge the same.

Without it, the node of a rank that was killed may give up while another one, which saw a peer go,
starts again and waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace as replace_fields

from whystuck.check.checks import make_context
from whystuck.check.nodes.exchange import exchange_texts
from whystuck.check.nodes.place import MeetingPlace
from whystuck.check.policy import CheckPolicy
from whystuck.evidence.decoding import decode_json
from whystuck.launch.restarts.ending import RootCause, RoundEnd
from whystuck.launch.restarts.exit_codes import classify

# Whose cause is that of all: what breaks a node explains a peer that is lost, and not the reverse.
_ORDER = ("hardware", "code", "lost", "communication", "unknown")
# A peer was lost, and not one of this node: its own node knows more.
_LOST_PEER = "C209"
_RANGE = re.compile(r"(\d{1,6}):\d{1,6}")
_NNODES = "--nnodes"


class NodeEnd(msgspec.Struct, frozen=True):
    """How a round ended on one node."""

    node: str
    end: RoundEnd


@dataclass
class Agreement:
    """What makes the nodes of a job decide alike after each round.

    Attributes:
        policy: For how long nodes wait for each other.
        node: The name of this node.
        meeting: Where they meet; None once this node is alone.
        least_nodes: How many nodes the job needs; 0 where it needs all.
        rounds: How many rounds they have spoken of.
    """

    policy: CheckPolicy
    node: str
    meeting: MeetingPlace | None
    least_nodes: int = 0
    rounds: int = field(default=0, init=False)

    def agree(self, end: RoundEnd, is_over: Callable[[], bool]) -> tuple[RoundEnd, str]:
        """Return how the round ended for all nodes, and why that is not known where it is not.

        Args:
            end: How it ended here; the code stays that of this node.
            is_over: Asked again and again whether to leave it.
        """
        place = self.meeting
        if place is None or place.nodes == 1 or end.was_asked:
            return end, ""
        self.rounds += 1
        nodes = replace_fields(self.policy.nodes, meet_s=self.policy.nodes.end_wait_s)
        context = make_context(replace_fields(self.policy, nodes=nodes), [], meeting=place)
        text = msgspec.json.encode(NodeEnd(self.node, end)).decode()
        texts, reason = exchange_texts(text, f"end-{self.rounds}", context, is_over)
        told = {rank: one for rank, text in texts.items() if (one := _decode(text)) is not None}
        stays = list_staying(told, self.least_nodes or place.nodes)
        self.meeting = _shrink(place, stays)
        if place.rank in stays and len(told) > 1:
            end = join_ends(end, told, stays)
        return end, reason


def list_staying(told: Mapping[int, NodeEnd], least: int) -> list[int]:
    """Return the nodes that may go on: those that are fit where they are enough, else all."""
    fit = [rank for rank, one in told.items() if not _is_unfit(one)]
    return sorted(fit if len(fit) >= least else told)


def join_ends(own: RoundEnd, told: Mapping[int, NodeEnd], stays: Sequence[int]) -> RoundEnd:
    """Return how a round ended by what all nodes tell: equal on all of them, but for the code."""
    ends = [told[rank] for rank in stays]
    if len(ends) < len(told):  # what is wrong with a node that leaves is over with it
        ends = [_forget_others(one) for one in ends]
    cause, node = _choose_cause(ends)
    return replace_fields(
        own,
        cause=cause,
        node=node,
        steps=max(one.end.steps for one in ends),
        printed_step=max(one.end.printed_step for one in ends),
        ended_well=tuple(one.node for one in ends if one.end.code == 0),
    )


def find_least_nodes(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return the least number of nodes by ``--nnodes MIN:MAX`` of torchrun; 0 without a range."""
    texts = [environment.get("PET_NNODES", "")]
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == _NNODES:
            texts.append(value if equals else following)
    match = _RANGE.fullmatch(texts[-1])
    return int(match[1]) if match else 0


def _choose_cause(ends: Sequence[NodeEnd]) -> tuple[RootCause | None, str]:
    found = [one for one in ends if one.end.cause is not None]
    if not found:
        return None, ""
    # Of equals, that of the first node.
    first = min(found, key=_rate)
    return first.end.cause, first.node


def _rate(one: NodeEnd) -> tuple[int, bool]:
    """Return what is least for the cause of all."""
    is_lost_peer = one.end.cause is not None and one.end.cause.code == _LOST_PEER
    kind = "communication" if is_lost_peer else classify(one.end.cause)
    return _ORDER.index(kind), not _is_unfit(one)


def _is_unfit(one: NodeEnd) -> bool:
    """Return whether a node is broken itself: all of them may tell of one."""
    cause = one.end.cause
    return cause is not None and cause.is_hardware and cause.is_about(one.node)


def _forget_others(one: NodeEnd) -> NodeEnd:
    if one.end.cause is None or not one.end.cause.is_hardware:
        return one
    return NodeEnd(one.node, replace_fields(one.end, cause=None))


def _shrink(place: MeetingPlace, ranks: Sequence[int]) -> MeetingPlace | None:
    """Return where those meet that go on: nobody waits for the others again."""
    if place.rank not in ranks or ranks[0] != 0 or len(ranks) == 1:
        return None
    return MeetingPlace(place.host, place.port, len(ranks), ranks.index(place.rank))


def _decode(text: str) -> NodeEnd | None:
    try:
        return decode_json(text.encode(), NodeEnd)
    except ValueError:
        return None
