"""Which group each rank waits in, by its pasted stack and by the groups that the job prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from whystuck.diagnose.algorithms.stacks.frames import is_user_frame
from whystuck.diagnose.algorithms.stacks.positions import Doing, is_transferring, locate, name_call
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.live import StackSample, ThreadStack

_Groups = Mapping[str, frozenset[frozenset[int]]]

# Frames in which a comment, or the name of a function, may say which group a call is of.
_NEAR = 3
_GROUP = re.compile(r"\b(?:process_)?(?:group|pg) ?[=:] ?['\"]?([A-Za-z]\w{0,40})")
_KIND = re.compile(r"(?<=\w)[_-](?:process_)?(?:groups?|pgs?)$", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*")
# Groups that are mostly called by their short names, and in full.
_LONG = {
    "tp": "tensor_parallel",
    "dp": "data_parallel",
    "pp": "pipeline_parallel",
    "ep": "expert_parallel",
    "cp": "context_parallel",
    "sp": "sequence_parallel",
    "mp": "model_parallel",
}


@dataclass(frozen=True)
class StackedWait:
    """A rank that waits in a group, and those of its members that wait in another one.

    ``is_noted`` tells whether somebody says which group it is, rather than a function's name.
    """

    rank: int
    group: str
    members: frozenset[int]
    missing: frozenset[int]
    sample: StackSample
    is_noted: bool


def list_stacked_waits(view: LogView) -> list[StackedWait]:
    """List the ranks whose stacks tell that they wait, where the group of each is told.

    A group of the same name that has no such rank in it, or several of one, is left out.
    """
    groups: dict[str, set[frozenset[int]]] = {}
    for file in view.files:
        for name, sets in file.groups.items():
            groups.setdefault(name, set()).update(sets)
    for event in view.list_signatures("table.members"):
        name = _KIND.sub("", event.groups["name"]).lower()
        members = frozenset(map(int, event.groups["members"].split(",")))
        groups.setdefault(name, set()).add(members)
    known = {name: frozenset(sets) for name, sets in groups.items()}
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    found = dict[int, tuple[str, frozenset[int], bool]]()
    for rank, sample in last.items() if len(known) > 1 else ():
        if told := _find_group(sample, rank, known, view.evidence.sources):
            found[rank] = told
    return [
        StackedWait(
            rank,
            name,
            members,
            frozenset(
                peer for peer in members - {rank} if peer in found and found[peer][0] != name
            ),
            last[rank],
            is_noted,
        )
        for rank, (name, members, is_noted) in sorted(found.items())
    ]


def list_noted_waits(view: LogView) -> list[StackedWait]:
    """List the ranks that wait where a comment at their stacks says which group it is.

    A rank that prints what it enters says so, too. Nobody tells who is in the groups: each rank is
    taken for a member of all of them.
    """
    entered = {event.rank: event for event in view.list_signatures("table.entered")}
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    found: dict[int, str] = {}
    for rank, sample in last.items():
        main = sample.main
        if main is None or sample.row is None or is_transferring(main.frames):
            continue
        names = {one[1].lower() for text in _list_notes(main) for one in _GROUP.finditer(text)}
        event = entered.get(rank)
        if not names and event is not None:
            is_there = _fold(event.groups["op"]) == _fold(name_call(main.frames))
            names = {event.groups["name"].lower()} if is_there else set()
        if len(names) == 1 and locate(main.frames).doing is Doing.COLLECTIVE:
            found[rank] = names.pop()
    return [
        StackedWait(
            rank,
            name,
            frozenset(found),
            frozenset(peer for peer, other in found.items() if other != name),
            last[rank],
            is_noted=True,
        )
        for rank, name in sorted(found.items())
    ]


def _fold(name: str) -> str:
    return name.replace("_", "").lower()


def _find_group(
    sample: StackSample, rank: int, groups: _Groups, sources: Mapping[str, str]
) -> tuple[str, frozenset[int], bool] | None:
    """Find the one group that a stack names, and its members; none where it is in no collective."""
    main = sample.main
    if main is None or sample.row is None or is_transferring(main.frames):
        return None
    if locate(main.frames).doing is not Doing.COLLECTIVE:
        return None
    noted = {name for text in _list_notes(main) for name in _find_names(text, groups)}
    if not noted:
        # The call itself says so, where its source is shown.
        noted = {name for text in _list_calls(main, sources) for name in _find_names(text, groups)}
    called = {name for text in _list_functions(main) for name in _find_names(text, groups)}
    names = noted or called
    if len(names) != 1:
        return None
    name = min(names)
    sets = [members for members in groups[name] if rank in members]
    return (name, sets[0], bool(noted)) if len(sets) == 1 else None


def _list_notes(thread: ThreadStack) -> list[str]:
    """Return the comments at the inner frames of the user, and below them."""
    user = [number for number, one in enumerate(thread.frames) if is_user_frame(one)][:_NEAR]
    return [note for place, note in thread.notes if user and place <= user[-1]]


def _list_calls(thread: ThreadStack, sources: Mapping[str, str]) -> list[str]:
    """Return the lines of the inner frames of the user, as far as they are shown and call the next.

    A call may go on in the lines below.
    """
    found: list[str] = []
    begin = 0
    for at in [at for at, one in enumerate(thread.frames) if is_user_frame(one)][:_NEAR]:
        frame = thread.frames[at]
        lines = sources.get(frame.file, "").split("\n")
        text = lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""
        # What wraps a call of torch lies in between.
        inner = (one.function for one in reversed(thread.frames[begin:at]))
        call = next((f"{one}(" for one in inner if f"{one}(" in text), "")
        found += [text.partition(call)[2].partition("#")[0]] if call else []
        begin = at
    return found


def _list_functions(thread: ThreadStack) -> list[str]:
    """Return what the function is called from which the collective is."""
    return [one.function for one in thread.frames if is_user_frame(one)][:1]


def _find_names(text: str, groups: _Groups) -> set[str]:
    """Return the groups that a text names: `group=dp`, `self.dp_group`, `reduce_dp_grads`."""
    # `dp0` is one of the groups that are called `dp`.
    words = f"_{'_'.join(word.rstrip('0123456789') for word in _WORD.findall(text)).lower()}_"
    return {
        name
        for name in groups
        if f"_{name}_" in words or (name in _LONG and f"_{_LONG[name]}_" in words)
    }


def describe_wait(sample: StackSample) -> str:
    """Return the call that a rank waits in."""
    return name_call(sample.main.frames) if sample.main is not None else "a collective"
