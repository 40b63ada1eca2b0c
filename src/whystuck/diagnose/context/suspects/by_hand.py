"""Explains a rank that waits for others without a collective: it asks again and again for a sign.

Programs that must not run into the time limit of a collective wait so: for a file that the first
rank makes, or for a key. Who waits so is a victim, whoever waits for it in turn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.source.polls import find_poll
from whystuck.diagnose.algorithms.stacks.frames import describe_place, is_user_frame, name_function
from whystuck.diagnose.algorithms.stacks.positions import (
    Doing,
    is_thread_in_call,
    locate,
    name_call,
)
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import (
    Suspicion,
    get_activity,
    get_frames,
    is_moving,
)
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.collectives import Frame

# What functions are called that wait for a sign of others; one that waits for data, a batch or a
# device waits for nothing that another rank does.
_WAITS = re.compile(
    r"(?:^|_)(?:wait|poll|block|spin|sleep)(?:s|ing|_for|_until|_on|_till){0,3}_(?:\w{1,40}_)?"
    r"(?:flag|file|marker|mark|ready|done|sentinel|exists?|leader|master|main|primary|rank|ranks"
    r"|peers?|others?|everyone|everybody|all|barrier|sync|turn|signal|key|path)(?:_|$|s$)",
    re.IGNORECASE,
)
_SLEEPS = {"sleep", "_sleep", "nanosleep", "clock_nanosleep", "select", "poll"}
# The blocking calls of a store of torch.distributed: they are C++, so the caller's line tells. A
# `get` of anything else that is called a store may as well be a file or a cache.
_STORE_CALLS = re.compile(r"(?:\wS|(?<![A-Za-z])s)tore(?:\([^()]*\))?\.(?:get|wait|multi_get)\(")
# The loop stands around the line that sleeps.
_NEAR_LINES = 6
_NUMBER = re.compile(r"^\s{0,12}(\d{1,6})\s{0,4}[:|]?\s")


@dataclass(frozen=True)
class _Flag:
    """A file that is there on one host and not on another, as shells tell."""

    path: str
    absent_on: tuple[str, ...]
    lines: tuple[LogEvent, ...]


def explain_polling(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that waits for a sign of another one."""
    frames = get_frames(facts, rank)
    user = _find_waiting(frames)
    if user is None or not (_WAITS.search(name_function(user)) or _is_shown(facts, user)):
        return None
    view = facts.logs.story.view
    flag = _find_flag(view)
    is_past = _are_past(facts, frames)
    text = f"waits itself, in {describe_place(user)}, for a sign that is no collective"
    if flag is not None:
        where = f" on {' and '.join(flag.absent_on)}" if flag.absent_on else ""
        text += f": {flag.path} is not there{where}"
    elif is_past:
        text += ", and whoever waits in the collective is past it: the sign is not seen here"
    cites = [facts.stacks.cite(rank, f"rank {rank} waits in {name_function(user)}")]
    if flag is not None:
        cites += [Citation(line.text, line.artifact, line.row) for line in flag.lines]
    return Suspicion(
        rank,
        codes.RANK_NEVER_JOINED,
        Confidence.LIKELY if flag is not None and flag.absent_on else Confidence.POSSIBLE,
        text,
        frames,
        because=tuple(cites),
        details={"state": "polling", "file": flag.path if flag else ""},
        is_blamed=False,
    )


def explain_asking(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank in a loop that asks for a key of a store or a file, by its source.

    Who should give the sign is not recorded, so that nobody is to blame for what is known.
    """
    frames = get_frames(facts, rank)
    user = _find_waiting(frames)
    asked = find_poll(user, facts.evidence.sources) if user is not None else ""
    if user is None or not asked:
        return None
    return Suspicion(
        rank,
        codes.RANK_NEVER_JOINED,
        Confidence.POSSIBLE,
        f"waits itself, in {describe_place(user)}, for a sign that is no collective",
        frames,
        because=(facts.stacks.cite(rank, f"rank {rank} asks {asked:.120} again and again"),),
        details={"state": "polling", "file": ""},
        is_blamed=False,
    )


def _find_waiting(frames: tuple[Frame, ...]) -> Frame | None:
    """Return the function that sleeps or spins: the innermost frame, or the caller of a sleep."""
    for frame in frames[:3]:
        if name_function(frame) not in _SLEEPS:
            return frame
    return None


def _is_shown(facts: Facts, frame: Frame) -> bool:
    """Tell whether source that stands beside the stacks shows the loop of a function."""
    view = facts.logs.story.view
    for loop in view.list_signatures("source.poll"):
        if number := _NUMBER.match(loop.text):
            if 0 <= frame.line - int(number[1]) <= _NEAR_LINES:
                return True
            continue
        heads = [
            one
            for one in view.list_signatures("source.def")
            if one.artifact == loop.artifact and one.row < loop.row
        ]
        if heads and heads[-1].groups["name"] == name_function(frame):
            return True
    return False


def _are_past(facts: Facts, frames: tuple[Frame, ...]) -> bool:
    """Tell whether all who wait for others are behind the line from which this rank waits."""
    mine = {(frame.file, frame.function): frame.line for frame in frames[1:]}
    others = [facts.stacks.positions[rank].frames for rank in facts.waits.waiting_by_stack]
    return bool(others) and all(
        any(frame.line > mine.get((frame.file, frame.function), frame.line) for frame in other)
        for other in others
    )


def _find_flag(view: LogView) -> _Flag | None:
    """Find a file that a shell says is not there, and the host of the prompt above it."""
    asked = list(view.list_signatures("shell.file_asked"))
    absent = list(view.list_signatures("shell.file_absent"))
    if not absent:
        return None
    path = absent[0].groups["file"]
    hosts = set[str]()
    for line in absent:
        above = [one for one in asked if one.artifact == line.artifact and one.row < line.row]
        host = line.node or (above[-1].groups["host"] if above else "")
        hosts |= {host} if host and line.groups["file"] == path else set()
    return _Flag(path, tuple(sorted(hosts)), tuple(absent[:2]))


def explain_key_wait(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that waits until another one sets a key of a store.

    Nothing records who should have set the key, so that nobody is to blame for what is known.
    """
    frames = get_frames(facts, rank)
    if not frames or not is_user_frame(frames[0]):
        return None
    line = facts.stacks.find_source_line(frames[0]).partition("#")[0]
    if not _STORE_CALLS.search(line) or is_moving(facts, get_activity(facts, rank)):
        return None
    return Suspicion(
        rank,
        codes.RANK_NEVER_JOINED,
        Confidence.POSSIBLE,
        f"waits itself, in {describe_place(frames[0])}, for a key of a store that is not set",
        frames,
        because=(facts.stacks.cite(rank, f"rank {rank} waits in {line.strip():.120}"),),
        details={"state": "waiting for a key"},
        is_blamed=False,
    )


def explain_other_thread(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank whose main thread is elsewhere while another of its threads is in a call.

    Who uses groups from two threads has no order of its calls.
    """
    position = facts.stacks.positions.get(rank)
    samples = facts.stacks.samples_by_rank.get(rank)
    if not samples or position is None or position.doing is not Doing.USER:
        return None
    found = next((one for one in samples[-1].threads if is_thread_in_call(one)), None)
    if found is None:
        return None
    frames = locate(found.frames).frames
    user = next((frame for frame in frames if "/torch/" not in f"/{frame.file}"), frames[0])
    call = name_call(frames)
    return Suspicion(
        rank,
        codes.GROUP_ORDER_CYCLE,
        Confidence.POSSIBLE,
        f"waits in {call} of {describe_place(user)} in its thread {found.name or 'beside'}, while "
        "others wait in a call of their main thread: two threads use groups in no fixed order",
        frames,
        because=(facts.stacks.cite(rank, f"a thread of rank {rank} is in {call}"),),
        is_blamed=False,
    )
