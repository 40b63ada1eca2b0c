"""C210 config-error: what is wrong with the environment, the command line or the machine.

And N417, where a library refused to start as ranks use different versions of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import name_known, write_exception
from whystuck.diagnose.algorithms.failures.config_errors import ConfigError, find_config_error
from whystuck.diagnose.algorithms.failures.config_kinds import KINDS
from whystuck.diagnose.algorithms.stacks.frames import describe_place, find_user_frame
from whystuck.diagnose.logs.cases.devices.device_memory import count_filled
from whystuck.diagnose.logs.cases.network.rendezvous_lines import has_twins, list_twins
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_victims, place_exceptions
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

# What a rank's own code does before the environment matters to it; the others are everybody's.
_OF_RANK = {
    "module", "library", "library-version", "build", "device", "device-taken", "fork",
    "environment",
}  # fmt: skip
_NOT_OF_RANKS = {
    "port",
    "versions",
    "argument",
    "script",
    "command",
    "placement",
    "interface",
    "quota",
}
# What is tried again for as long as it takes has ended nothing, and nothing begins before.
_RETRIED = {"sched.waits", "sched.refused"}
# A pod that has a log was placed in the end.
_PLACED_LATER = {"k8s.not_placed", "sched.refused"}
_MAX_LINES = 6


@dataclass
class _Mistake:
    """One mistake, and all that tell of it."""

    error: ConfigError
    events: list[LogEvent] = field(default_factory=list)
    exceptions: list[PythonException] = field(default_factory=list)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have it, as far as they are known."""
        told = {item.rank for item in self.events} | {item.rank for item in self.exceptions}
        return tuple(sorted(told - {-1}))

    @property
    def hosts(self) -> frozenset[tuple[str, int]]:
        """The host, where the line tells it, and the rank of each that has it."""
        told = {(item.node, item.rank) for item in self.events}
        return frozenset(told | {(item.node, item.rank) for item in self.exceptions})


def make_config_errors(view: LogView) -> Iterator[Case]:
    """Make a case of each mistake in the environment that ended processes."""
    mistakes: dict[tuple[str, str], _Mistake] = {}
    for event in view.list_events(codes.CONFIG_ERROR, "cause"):
        if (
            (is_said(event) or event.signature in _RETRIED)
            and not _is_over(view, event)
            and (error := find_config_error(event.text))
        ):
            _take(mistakes, error).events.append(event)
    for item in view.exceptions:
        if item.is_caught or name_known(item) != codes.CONFIG_ERROR:
            continue
        if error := find_config_error(write_exception(item), is_raised=True):
            mistake = _take(mistakes, error)
            mistake.exceptions.append(item)
            line = view.find_event_of(item)
            if line is not None and line not in mistake.events:
                mistake.events.append(line)
    kinds = {mistake.error.kind.name for mistake in mistakes.values()}
    for mistake in mistakes.values():
        # A driver that does not fit shows no device.
        is_seen_twice = mistake.error.kind.name == "device" and "driver" in kinds
        if not is_seen_twice and not _is_of_twins(view, mistake):
            yield _make_case(view, mistake)
    if not mistakes:
        yield from _make_unknown(view)


def _is_over(view: LogView, event: LogEvent) -> bool:
    """Tell whether a mistake was mended: a pod that has a log was placed in the end."""
    if event.signature == "sched.waits":
        started = view.list_signatures("sched.started")
        return any(one.artifact == event.artifact and one.row > event.row for one in started)
    if event.signature == "k8s.not_placed" and _is_started_later(view, event):
        return True
    return event.signature in _PLACED_LATER and bool(view.find_ranks_of(event))


def _is_started_later(view: LogView, event: LogEvent) -> bool:
    """Tell whether a container of the pod that an event is about was started after it.

    Events of pods are told in their order; `kubectl describe` tells those of one pod.
    """
    pod = view.find_node_of(event)
    return any(
        one.artifact == event.artifact and one.row > event.row and view.find_node_of(one) == pod
        for one in view.list_signatures("k8s.started")
    )


def _is_of_twins(view: LogView, mistake: _Mistake) -> bool:
    """Tell whether a port is taken by another process of the same rank, started by mistake."""
    if mistake.error.kind.name != "port":
        return False
    return has_twins(view.evidence.claims) or bool(list_twins(view) & set(mistake.ranks))


def _take(mistakes: dict[tuple[str, str], _Mistake], error: ConfigError) -> _Mistake:
    """Return what is known of a mistake; what tells most of it gives it its words."""
    mistake = mistakes.setdefault(error.key, _Mistake(error))
    if KINDS.index(error.kind) < KINDS.index(mistake.error.kind):
        mistake.error = error
    return mistake


def _make_case(view: LogView, mistake: _Mistake) -> Case:
    kind = mistake.error.kind
    nodes = _find_nodes(view, mistake)
    is_hosts = kind.is_of_host and bool(nodes)
    ranks = () if kind.name in _NOT_OF_RANKS or is_hosts else _find_ranks(view, mistake)
    where = place_exceptions([one for one in mistake.exceptions if find_user_frame(one.frames)][:1])
    place = f" in {describe_place(where[0])}" if where else ""
    who = " and ".join(nodes) if nodes else name_ranks(ranks) if ranks else ""
    sentence = mistake.error.sentence
    is_apart = kind.name == "versions"
    return Case(
        code=codes.VERSIONS_DIFFER if is_apart else codes.CONFIG_ERROR,
        summary=f"{who}: {sentence}{place}" if who else f"{sentence}{place}",
        tier=OWN,
        ranks=ranks,
        nodes=nodes,
        victims=list_victims(view, mistake.ranks),
        lines=_choose_lines(mistake),
        exceptions=tuple(mistake.exceptions),
        where=where,
        time=find_time(mistake.events, mistake.exceptions),
        confidence=Confidence.CERTAIN
        if any(item.source not in {"log", "launcher log"} for item in mistake.exceptions)
        else Confidence.LIKELY,
        details=_map_versions(view, mistake.error.words)
        if is_apart
        else {"kind": kind.name, "words": mistake.error.words},
        remedies=mistake.error.remedies,
        scope=frozenset(mistake.ranks),
    )


def _map_versions(view: LogView, words: Mapping[str, str]) -> dict[str, Any]:
    """Return who has which version: the host of a rank, or else the rank."""
    told = [(words.get(version), words.get(rank)) for version, rank in (("va", "a"), ("vb", "b"))]
    return {
        "versions": {
            version: [view.node_by_rank.get(int(rank[:9]), "") or f"rank {rank}"]
            for version, rank in told
            if version and rank
        }
    }


def _choose_lines(mistake: _Mistake) -> tuple[LogEvent, ...]:
    """Return the lines to cite, those that say what the summary says first."""
    pattern = mistake.error.kind.pattern
    ordered = sorted(mistake.events, key=lambda event: not pattern.search(event.text))
    return tuple(ordered[:_MAX_LINES])


def _find_nodes(view: LogView, mistake: _Mistake) -> tuple[str, ...]:
    """Return the hosts that have it, where other hosts do not."""
    if mistake.error.kind.name in {"versions", "argument", "interface", "quota"}:
        return ()
    if mistake.error.kind.name == "placement":
        return tuple(sorted(_find_pods(view, mistake)))
    nodes = {node or view.node_by_rank.get(rank, "") for node, rank in mistake.hosts} - {""}
    hosts = set(view.node_by_rank.values()) | {file.node for file in view.files}
    hosts = (hosts | {event.node for event in view.events}) - {""}
    if (mistake.error.kind.is_of_host or mistake.error.kind.name == "port") and nodes < hosts:
        return tuple(sorted(nodes))
    if not nodes < hosts or mistake.error.kind.name == "port":
        return ()
    # A host is at fault when all its ranks say so, a rank alone when some do.
    ranks = set(mistake.ranks)
    whole = all(view.list_ranks_on(node) <= ranks for node in nodes)
    return tuple(sorted(nodes)) if whole else ()


def _find_pods(view: LogView, mistake: _Mistake) -> set[str]:
    """Return the pods that events name, or else those that a list shows to be waiting.

    A pod whose log stands above an event is not the one that the event is about, where a list shows
    that others wait.
    """
    listed = (event.groups.get("pod") or "" for event in view.list_signatures("k8s.pod_waiting"))
    waiting = {*listed} - {""}
    named = {
        pod
        for event in mistake.events
        if (pod := view.find_node_of(event))
        and (not waiting or pod in waiting or pod in event.text)
    }
    return named or waiting


def _find_ranks(view: LogView, mistake: _Mistake) -> tuple[int, ...]:
    """Return the ranks that have it, where others got past it."""
    ranks = mistake.ranks
    if mistake.error.kind.is_of_host:
        # Where no host is named, the rank that says so stands for its own, beside others.
        written = frozenset[int]().union(*(file.ranks for file in view.files))
        return ranks if written - set(ranks) and not view.is_everywhere(ranks) else ()
    if mistake.error.kind.name == "device-taken" and count_filled(view) == len(ranks):
        return ranks
    raised = {item.rank for item in view.exceptions} - set(ranks) - {-1}
    if mistake.error.kind.name not in _OF_RANK or view.is_everywhere(ranks) or not raised:
        return ()
    return ranks


def _make_unknown(view: LogView) -> Iterator[Case]:
    """Make a case of lines that a table calls a mistake of this sort and that nobody explains."""
    events = [
        event
        for event in view.list_events(codes.CONFIG_ERROR, "cause")
        if is_said(event) and not event.signature.startswith(_OURS)
    ]
    if not events:
        return
    first = events[0]
    yield Case(
        code=codes.CONFIG_ERROR,
        summary=first.meaning.rstrip(".") or first.text.strip()[:160],
        tier=OWN,
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        details={"kind": first.kind or "unknown", "words": dict(first.groups)},
        remedies=(first.action,) if first.action else (),
    )


# Lines of our own table that tell of nothing where they do not lead a line or end a traceback.
_OURS = (
    "py.",
    "port.",
    "kernel.",
    "cuda.",
    "nccl.",
    "torch.",
    "shell.",
    "nvidia.",
    "k8s.",
    # These have a case of their own.
    "launch.",
    "fm.",
)
