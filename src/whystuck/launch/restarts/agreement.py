"""Several nodes decide alike: each tells the others how its round ended, and all judge the same.

Without it, the node of a rank that was killed may give up while another one, which saw a peer go,
starts again and waits for it. A node that is out of the job says so before it leaves: the others go
on without it where they are enough, and end where they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from msgspec.structs import replace as replace_fields

from whystuck.check.nodes.place import MeetingPlace
from whystuck.check.policy import CheckPolicy
from whystuck.evidence.decoding import decode_json
from whystuck.launch.restarts.ending import RootCause, RoundEnd
from whystuck.launch.restarts.exit_codes import classify
from whystuck.launch.restarts.policy import STOPPED
from whystuck.launch.restarts.talk.first_node import FirstNode
from whystuck.launch.restarts.talk.other_node import OtherNode
from whystuck.launch.restarts.talk.words import Heard, Left

IsOver = Callable[[], bool]
_T = TypeVar("_T")
# Whose cause is that of all: what breaks a node explains a peer that is lost, and not the reverse.
_ORDER = ("hardware", "code", "lost", "communication", "unknown")
# A peer was lost, and not one of this node: its own node knows more.
_LOST_PEER = "C209"
SILENT = "Not all nodes told how their round ended"
_ENDED_WELL = "it has ended well there"
_MOST_NAMES = 8


class NodeEnd(msgspec.Struct, frozen=True):
    """How a round ended on one node."""

    node: str
    end: RoundEnd


class NodeStart(msgspec.Struct, frozen=True):
    """Whether one node may start a round: the cause is why not."""

    node: str
    cause: RootCause | None = None


@dataclass(frozen=True)
class StartDecision:
    """Whether a round starts; ``node`` and ``cause`` tell of the one that is not fit."""

    why_not: str = ""
    node: str = ""
    cause: RootCause | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Agreement:
    """What makes the nodes of a job decide alike before and after each round.

    Attributes:
        policy: For how long nodes wait for each other.
        node: The name of this node.
        place: Where they meet, and which of them this is.
        least_nodes: How many nodes the job needs; 0 where it needs all.
        hold_s: For how long a node may keep a scene, and come later by that.
        ranks: The nodes that are in the job, by their ranks.
    """

    policy: CheckPolicy
    node: str
    place: MeetingPlace
    least_nodes: int = 0
    hold_s: float = 0.0
    ranks: list[int] = field(init=False)
    _talk: FirstNode | OtherNode = field(init=False)
    _names: dict[int, str] = field(default_factory=dict, init=False)
    _left: dict[int, Left] = field(default_factory=dict, init=False)
    _starts: int = field(default=0, init=False)
    _ends: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """All are in it; nothing is opened yet."""
        self.ranks = list(range(self.place.nodes))
        talk = FirstNode if self.place.rank == 0 else OtherNode
        self._talk = talk(self.place, self.node)

    @property
    def meeting(self) -> MeetingPlace | None:
        """Where those meet that are in the job; None where this node is alone."""
        if self._is_alone:
            return None
        number = self.ranks.index(self.place.rank)
        return MeetingPlace(self.place.host, self.place.port, len(self.ranks), number)

    @property
    def _is_alone(self) -> bool:
        return 0 not in self.ranks or self.place.rank not in self.ranks or len(self.ranks) == 1

    @property
    def end_wait_s(self) -> float:
        """For how long a node waits for others whose round may go on."""
        return self.policy.nodes.end_wait_s + self.hold_s

    @property
    def _least(self) -> int:
        return min(self.least_nodes or self.place.nodes, self.place.nodes)

    def open(
        self,
        on_wait: Callable[[str], None] = lambda _where: None,
        is_over: IsOver = lambda: False,
    ) -> str:
        """Be there for the others from now on; return what keeps this node from it.

        The first node is waited for, as the launcher of the job would; ``on_wait`` is told where.
        """
        wait_s = self.policy.nodes.meet_s
        return "" if self._is_alone else self._talk.open(wait_s, on_wait, is_over)

    def greet(self) -> None:
        """Take those that have come since."""
        if not self._is_alone:
            self._talk.greet()

    def close(self) -> None:
        """Close what is open without a word, as a process does that was forked."""
        self._talk.close()

    def leave(self, end: RoundEnd | None) -> None:
        """Tell the others that this node is out of the job.

        Args:
            end: How its last round ended; None where there was none.
        """
        if end is not None and end.is_asked_for:
            self._talk.leave(STOPPED)
        elif end is not None and end.code == 0:
            text = msgspec.json.encode(NodeEnd(self.node, end)).decode()
            self._talk.leave(_ENDED_WELL, text)
        else:
            self._talk.leave(Left().reason)

    def agree_on_start(self, cause: RootCause | None, is_over: IsOver) -> StartDecision:
        """Tell the others whether this node is fit, and return what all of them do.

        Args:
            cause: Why it is not.
            is_over: Asked again and again whether to leave it.
        """
        self._starts += 1
        text = msgspec.json.encode(NodeStart(self.node, cause)).decode()
        wait_s = self.policy.nodes.meet_s
        heard = self._gather(f"start-{self._starts}", text, wait_s, is_over)
        told = _decode(heard.told, NodeStart)
        self._names.update({rank: one.node for rank, one in told.items()})
        unfit = {rank: one for rank, one in told.items() if one.cause is not None}
        gone = [self._say_unfit(rank, one.cause) for rank, one in unfit.items() if one.cause]
        gone += self._take_left()
        self._let_go(unfit)
        notes = [f"The job goes on without a node: {one}" for one in gone]
        if problem := self._find_problem(heard, wait_s):
            notes.append(f"Not all nodes told whether they are fit: {problem}")
        if not gone or len(self.ranks) >= self._least:
            return StartDecision(notes=tuple(notes))
        rank, first = next(iter(unfit.items()), (-1, NodeStart("")))
        return StartDecision(gone[0], self._name(rank) if unfit else "", first.cause)

    def gather_after(self, end: RoundEnd, wait_s: float, is_over: IsOver) -> str:
        """Wait until the round is over on all nodes; return why some have not come.

        Checks after it are made by those that are there.
        """
        if end.is_asked_for:
            return ""
        heard = self._gather(f"over-{self._ends + 1}", "", wait_s, is_over)
        return self._leave_out(heard, wait_s)

    def agree(self, end: RoundEnd, is_over: IsOver) -> tuple[RoundEnd, tuple[str, ...]]:
        """Return how the round ended for all nodes, and what is to be told of them.

        Args:
            end: How it ended here; the code stays that of this node.
            is_over: Asked again and again whether to leave it.
        """
        if end.is_asked_for:
            return end, ()
        self._ends += 1
        text = msgspec.json.encode(NodeEnd(self.node, end)).decode()
        wait_s = self.end_wait_s
        heard = self._gather(f"end-{self._ends}", text, wait_s, is_over)
        problem = self._leave_out(heard, wait_s)
        said = {rank: one.text for rank, one in self._left.items() if one.text}
        told = _decode(said | heard.told, NodeEnd)
        self._names.update({rank: one.node for rank, one in told.items()})
        gone = self._take_left(told)
        stays = list_staying(told, self._least)
        if self.place.rank in stays and len(told) > 1:
            end = join_ends(end, told, stays)
        self._let_go(told.keys() - stays)
        if gone and len(self.ranks) < self._least:
            return replace_fields(end, too_few=gone[0]), ()
        notes = [f"The job goes on without a node: {one}" for one in gone]
        if problem:
            notes.append(f"{SILENT}: {problem}")
        return end, tuple(notes)

    def _gather(self, label: str, text: str, wait_s: float, is_over: IsOver) -> Heard:
        """Tell, and hear; those that have left are noted, and waited for no more."""
        if self._is_alone:
            return Heard(label, {self.place.rank: text})
        heard = self._talk.gather(label, text, self.ranks, wait_s, is_over)
        self._names.update({rank: one.node for rank, one in heard.left.items() if one.node})
        self._left.update({rank: one for rank, one in heard.left.items() if rank in self.ranks})
        self._let_go(heard.left)
        return heard

    def _leave_out(self, heard: Heard, wait_s: float) -> str:
        """Wait no more for nodes that did not come; return who did not."""
        problem = self._find_problem(heard, wait_s)
        if problem and not heard.missing:  # this one hears nobody
            self.ranks = [self.place.rank]
        self._let_go(heard.missing)
        return problem

    def _find_problem(self, heard: Heard, wait_s: float) -> str:
        if heard.problem:
            return heard.problem
        if self.place.rank not in heard.told:
            return "this one came too late"
        if not heard.missing:
            return ""
        which = "node rank" if len(heard.missing) == 1 else "node ranks"
        ranks = ", ".join(map(str, heard.missing[:_MOST_NAMES]))
        more = len(heard.missing) - _MOST_NAMES
        ranks += f" and {more} more" if more > 0 else ""
        return f"{which} {ranks} did not come within {wait_s:g} s"

    def _let_go(self, ranks: Collection[int]) -> None:
        self.ranks = [rank for rank in self.ranks if rank not in ranks]

    def _say_unfit(self, rank: int, cause: RootCause) -> str:
        return f"{self._name(rank)} is not fit: {cause.describe()}"

    def _take_left(self, told: Collection[int] = ()) -> list[str]:
        """Return who has left since the last decision, but for those that have told an end."""
        left, self._left = self._left, {}
        return [
            f"{self._name(rank)} has left: {one.reason}"
            for rank, one in left.items()
            if rank not in told
        ]

    def _name(self, rank: int) -> str:
        name = self._names.get(rank, "")
        if not name:
            return f"node rank {rank}"
        is_shared = list(self._names.values()).count(name) > 1
        return f"{name} (node rank {rank})" if is_shared else name


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


def _decode(texts: Mapping[int, str], kind: type[_T]) -> dict[int, _T]:
    """Return what nodes told; what cannot be read is as if it were not told."""
    found = {}
    for rank, text in sorted(texts.items()):
        with suppress(ValueError):
            found[rank] = decode_json(text.encode(), kind)
    return found
