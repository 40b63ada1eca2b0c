"""What was said about one rendezvous, tied to the lines and tracebacks that say it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import name_known, write_exception
from whystuck.diagnose.algorithms.failures.rendezvous import Meeting, Said, hold_meeting
from whystuck.diagnose.logs.cases.parts import is_said
from whystuck.diagnose.logs.story import WAIT
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.nodes.resources import RankClaim

_TAKEN = "EADDRINUSE"


@dataclass
class Told:
    """What was said, and the lines and tracebacks that say it."""

    meeting: Meeting
    events: dict[int, LogEvent]
    exceptions: dict[int, PythonException]
    view: LogView

    def list_lines(self, keys: Iterable[int]) -> tuple[LogEvent, ...]:
        """Return the lines of some keys."""
        return tuple(self.events[key] for key in sorted(keys) if key in self.events)

    def get_text(self, key: int) -> str:
        """Return what was said."""
        if key in self.events:
            return self.events[key].text
        return write_exception(self.exceptions[key])

    def find_ranks(self, keys: Iterable[int]) -> tuple[int, ...]:
        """Return the ranks that said something."""
        told = {self._get(key).rank for key in keys}
        return tuple(sorted(told - {-1}))

    def find_nodes(self, keys: Iterable[int]) -> tuple[str, ...]:
        """Return the hosts on which something was said."""
        items = [self._get(key) for key in keys]
        found = {item.node or self.view.node_by_rank.get(item.rank, "") for item in items}
        return tuple(sorted(found - {""}))

    def _get(self, key: int) -> LogEvent | PythonException:
        return self.events[key] if key in self.events else self.exceptions[key]


@dataclass(frozen=True)
class Answer:
    """What differs, in the words of one finding."""

    kind: str
    says: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    keys: frozenset[int] = frozenset()
    tier: int = WAIT
    confidence: Confidence = Confidence.LIKELY
    details: dict[str, Any] = field(default_factory=dict)
    remedies: tuple[str, ...] = ()
    # Lines of other cases that are about the same.
    entails: tuple[LogEvent, ...] = ()


def listen(view: LogView) -> Told:
    """Collect what lines and tracebacks say of the rendezvous."""
    events: dict[int, LogEvent] = {}
    exceptions: dict[int, PythonException] = {}
    said: list[Said] = []
    kinds = {file.artifact: file.kind for file in view.files}
    ranks_with_log = {file.rank for file in view.files if file.kind == "rank"}
    for event in view.list_events(codes.RENDEZVOUS_FAILED):
        if is_said(event):
            # What a launcher prints again is of the process that has a log of its own.
            own = event.artifact if kinds.get(event.artifact) == "rank" else "merged"
            writer = f"{own}:{event.pid}"
            if own == "merged" and event.rank in ranks_with_log and event.role == "context":
                continue
            if event.signature == "net.dns6" and event.is_past:
                continue  # the job went on behind it
            key = len(said)
            events[key] = event
            is_failure = event.role == "cause" or _is_overfull(view, event)
            said.append(Said(event.text, event.rank, event.node, writer, key, is_failure))
    for item in view.exceptions:
        if name_known(item) == codes.RENDEZVOUS_FAILED and not item.is_caught:
            key = len(said)
            exceptions[key] = item
            text, writer = write_exception(item), f"{item.artifact}:{item.pid}"
            said.append(Said(text, item.rank, item.node, writer, key, is_failure=True))
    claims = [_quote_claim(claim) for claim in select_claims(view.evidence.claims)]
    events |= dict(enumerate(claims, len(said)))
    said += [
        Said(claim.text, claim.rank, claim.node, f"{claim.node}:{claim.pid}", key)
        for key, claim in enumerate(claims, len(said))
    ]
    meeting = hold_meeting(said)
    if claims:
        # What processes were started with, as the kernel has it; they may print it more than once.
        first = len(said) - len(claims)
        meeting.environments = [item for item in meeting.environments if item.key >= first]
    _add_taken_ports(view, meeting, exceptions, len(said))
    return Told(meeting, events, exceptions, view)


def _is_overfull(view: LogView, event: LogEvent) -> bool:
    """Tell whether more came to a store than there are, and nobody got past it: nobody will.

    A launcher that starts all ranks again lets them count on, and they get past it.
    """
    if event.signature != "store.barrier_wait" or event.is_past:
        return False
    is_over = int(event.groups["joined"][:9]) > int(event.groups["world"][:9])
    return is_over and not any(view.list_signatures("store.barrier_done"))


def _add_taken_ports(
    view: LogView, meeting: Meeting, exceptions: dict[int, PythonException], key: int
) -> None:
    """Count as failures that a second process of one rank found the port of its store taken."""
    twins = meeting.list_twins()
    for item in view.exceptions:
        if item.rank in twins and name_known(item) == codes.CONFIG_ERROR and _TAKEN in item.message:
            exceptions[key] = item
            meeting.failures.add(key)
            meeting.ranks.add(item.rank)
            key += 1


def list_twins(view: LogView) -> frozenset[int]:
    """Return the ranks that more than one process was started with."""
    return frozenset(listen(view).meeting.list_twins())


def select_claims(claims: Iterable[RankClaim]) -> list[RankClaim]:
    """Select the processes that were to be ranks, in the last attempt that there was.

    A program that only starts the one that becomes the rank is left out, and so are processes that
    a rank starts, and those that ended before the last one of their rank began.
    """
    known = list(claims)
    last = max((claim.attempt for claim in known), default=0)
    known = [claim for claim in known if claim.attempt == last]
    parents = {claim.parent_pid for claim in known}
    members = {claim.rank for claim in known if claim.is_member}
    ranks = {claim.pid for claim in known if claim.is_member}
    newest = {claim.rank: claim.began_ns for claim in sorted(known, key=lambda one: one.began_ns)}
    return [
        claim
        for claim in known
        if (claim.is_member or not (claim.pid in parents or claim.parent_pid in ranks))
        and (claim.is_member or claim.rank not in members)
        and not 0 < claim.ended_ns < newest[claim.rank]
    ]


def has_twins(claims: Iterable[RankClaim]) -> bool:
    """Tell whether two processes were started with one rank."""
    ranks = [claim.rank for claim in select_claims(claims)]
    return len(set(ranks)) < len(ranks)


def _quote_claim(claim: RankClaim) -> LogEvent:
    values = {"RANK": str(claim.rank)}
    if claim.world_size:
        values["WORLD_SIZE"] = str(claim.world_size)
    text = " ".join(f"{name}={value}" for name, value in (values | claim.environment).items())
    return LogEvent(
        signature="rank.claim",
        role="context",
        code=codes.RENDEZVOUS_FAILED,
        kind="claim",
        artifact=claim.artifact,
        row=claim.row,
        text=text,
        rank=claim.rank,
        node=claim.node,
        pid=claim.pid,
    )


def find_counted(told: Told) -> frozenset[int]:
    """Return the keys of what tells how many processes met."""
    return frozenset(
        key
        for key in told.meeting.failures
        if any(words in told.get_text(key) for words in ("clients joined", "joined="))
    )


def has_failed(told: Told, key: int) -> bool:
    """Tell whether who said something also says that the rendezvous failed."""
    event = told.events.get(key)
    if event is None:
        return True
    failures = told.meeting.failures - {key}
    others = {(one.artifact, one.rank) for one in told.list_lines(failures)}
    raised = (told.exceptions[one] for one in failures if one in told.exceptions)
    others |= {(one.artifact, one.rank) for one in raised}
    return any(file == event.artifact and event.rank in {rank, -1} for file, rank in others)


def find_odd_ones(told: Told, keys: set[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the hosts, and the ranks, that have a trouble which others do not have."""
    nodes, ranks = told.find_nodes(keys), told.find_ranks(keys)
    other_nodes = set(told.find_nodes(told.meeting.failures - keys)) - set(nodes)
    hosts = set(told.view.node_by_rank.values()) | {file.node for file in told.view.files} - {""}
    others = told.meeting.ranks - set(ranks)
    is_some = bool(other_nodes) or set(nodes) < hosts
    return nodes if is_some else (), ranks if others else ()


def is_of_later_group(view: LogView) -> bool:
    """Tell whether ranks wait for others that are there, too, to make a group behind the first."""
    makes = {
        sample.rank: any(frame.function == "new_group" for frame in thread.frames)
        for sample in view.evidence.stacks
        for thread in sample.threads
        if thread.is_main and not sample.worker
    }
    return len(set(makes.values())) > 1
