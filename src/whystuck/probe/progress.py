"""Counting what the flight recorder does not: optimizer steps, sends, receives and replays."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

from . import files
from .calling.interrupts import let_through
from .calling.unseen import hide_from_warnings, leave_out
from .recorder import names, peers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .marks.control import Marking

# The members, as ranges, of the groups that this rank began to make last, by the names that torch
# gives in the order of the calls.
_BEGUN: dict[str, str] = {}
_MAX_BEGUN = 16
_MAX_GROUP_TEXT = 400
# A number of steps that no job makes, in the 31 bits that a mark has for it.
_MOST = (1 << 31) - 2


class Counts:
    """Counters since the process started; written by the job's threads, read by the probe's."""

    def __init__(self) -> None:
        self.optimizer_steps = 0
        self.p2p_sent = 0
        self.p2p_received = 0
        # Of CUDA graphs; ops that were captured are recorded nowhere when they run.
        self.replays = 0
        # Ops in the op log, at the last beat; -1 once it has been turned off.
        self.recorded = 0
        # Called with the number of steps after each, while something waits for one.
        self.due: Callable[[int], None] | None = None
        # Called with the optimizer before and after each step, while something looks at it. They
        # must not raise.
        self.before_step: Callable[[Any], None] | None = None
        self.after_step: Callable[[Any], None] | None = None
        # Gets the begin and the end of each optimizer step, and the end of each step that counts.
        self.marks: Marking | None = None
        # Whether the job tells its steps itself; those of optimizers do not count then.
        self.is_told = False


COUNTS = Counts()


def _before_step(optimizer: Any, *_: object) -> None:
    if (see := COUNTS.before_step) is not None:
        see(optimizer)
    if (marks := COUNTS.marks) is not None:
        marks.optimizer_begins(optimizer)


def _count_step(optimizer: Any = None, *_: object) -> None:
    if (marks := COUNTS.marks) is not None:
        marks.optimizer_ends()
    if not COUNTS.is_told:
        COUNTS.optimizer_steps += 1
        if marks is not None:
            marks.step_ends()
    if (see := COUNTS.after_step) is not None:
        see(optimizer)
    if not COUNTS.is_told and (due := COUNTS.due) is not None:
        due(COUNTS.optimizer_steps)


def tell_step(index: int | None = None) -> None:
    """Take note that the job has made the step of an index; never raises.

    The count follows the job's own where that is larger, and never goes back: it begins anew in
    each epoch of some jobs.
    """
    try:
        COUNTS.is_told = True
        made = COUNTS.optimizer_steps + 1
        COUNTS.optimizer_steps = made if index is None else max(made, min(int(index), _MOST) + 1)
        if (marks := COUNTS.marks) is not None:
            marks.step_ends()
        if (due := COUNTS.due) is not None:
            due(COUNTS.optimizer_steps)
    except Exception as error:  # the job goes on without us
        let_through(error)
        return


# What torch.compiler.disable sets: the compiler must not trace, and guard on, a counter.
_HOOKS: tuple[Any, ...] = (_before_step, _count_step, tell_step)
for _hook in _HOOKS:
    _hook._torchdynamo_disable = True
    _hook._torchdynamo_disable_msg = None


def watch_optimizers() -> None:
    """Count optimizer steps by torch's own global hooks.

    They stay: to add or remove one while torch goes through them would be an error in the job.
    """
    optimizer = sys.modules["torch.optim.optimizer"]
    optimizer.register_optimizer_step_pre_hook(_before_step)
    optimizer.register_optimizer_step_post_hook(_count_step)


def watch_p2p() -> None:
    """Count sends and receives: gloo's recorder does not see them."""
    group_class = sys.modules["torch._C._distributed_c10d"].ProcessGroup
    for name, counter, kind in (
        ("send", "p2p_sent", peers.SEND),
        ("recv", "p2p_received", peers.RECV),
        ("recv_anysource", "p2p_received", peers.ANY),
    ):
        original = getattr(group_class, name, None)
        if original is not None:
            setattr(group_class, name, _counting(original, counter, kind))


def _counting(original: Callable[..., Any], counter: str, kind: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        setattr(COUNTS, counter, getattr(COUNTS, counter) + 1)
        op = peers.post(kind, args, kwargs)
        try:
            work = original(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        peers.keep_handle(op, work)
        return work

    return call


def watch_groups(on_created: Callable[[int, int], None]) -> None:
    """Call ``on_created`` after each new process group, in the thread that made it.

    It gets rank and world size when the group is the default one, which torch passes on before
    it keeps them anywhere, else -1 and 0.
    """
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    original = getattr(c10d, "_new_process_group_helper", None)
    if original is None:
        return

    @functools.wraps(original)
    def helper(*args: Any, **kwargs: Any) -> Any:
        try:
            names.give_way()
            _note_begun(str(args[5]), args[2])
        except Exception as error:  # as below
            let_through(error)
        try:
            made = original(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        try:
            world_size, rank, members = args[:3]
            on_created(*((-1, 0) if members else (int(rank), int(world_size))))
        except Exception as error:  # the job goes on without us
            let_through(error)
            return made
        return made

    hide_from_warnings(helper)
    c10d._new_process_group_helper = helper


def _note_begun(name: str, members: Any) -> None:
    """Keep the members of a group that is about to be made; other names than numbers are hashes."""
    if name.isdigit():
        _BEGUN[name] = _describe_members(members)
        while len(_BEGUN) > _MAX_BEGUN:
            del _BEGUN[next(iter(_BEGUN))]


def _describe_members(members: Any) -> str:
    """Write ranks as sorted ranges, such as ``0-2,5``; cut where they are many."""
    ordered = sorted(int(rank) for rank in members or ())
    parts, start = [], 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            first, last = ordered[start], ordered[end - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = end
    return ",".join(parts)[:_MAX_GROUP_TEXT]


class GroupWriter:
    """Writes the members of each group, which gloo's recorder leaves empty, when they change."""

    def __init__(self) -> None:
        self._written: tuple[int, tuple[tuple[int, str], ...]] | None = None

    def write_if_changed(self) -> None:
        """Write ``groups-PID`` when groups came or went, or were begun, since the last call."""
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        world = getattr(c10d, "_world", None)
        if world is None:
            return
        # Not their number: one may go and another come between two looks.
        found = tuple((id(group), str(name)) for group, name in list(world.pg_names.items()))
        # Before a group is there, torch has given it its number; hashed names have none.
        calls = int(getattr(world, "group_count", -1))
        if (calls, found) == self._written:
            return
        self._written = calls, found
        groups = {
            str(world.pg_names.get(group, "")): sorted(ranks)
            for group, ranks in list(world.pg_group_ranks.items())
        }
        files.write_json(
            files.path_of("groups"),
            {"version": 1, "groups": groups, "calls": calls, "begun": dict(_BEGUN)},
        )
