"""Sends and receives: which were posted, and which one each thread waits for.

Of an op only numbers, names and a weak reference to its handle are kept, never a tensor.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from typing import Any

from .. import files
from ..calling.interrupts import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SEND, RECV, ANY, BARRIER = "send", "recv", "any", "barrier"
_C10D_FILE = os.path.join("torch", "distributed", "distributed_c10d.py")
_KINDS_BY_CALL = {"send": (SEND,), "isend": (SEND,), "recv": (RECV, ANY), "irecv": (RECV, ANY)}
_WAIT_NAMES = ("wait", "synchronize")
_MAX_OPS = 256
_MAX_KEYS = 8192
# A job may make groups and destroy them as long as it runs: theirs are forgotten from here on, and
# again when there are twice as many as were left.
_LEAST_KEYS = 256
_MAX_WAITS = 64
_MAX_FRAMES = 30
_MAX_SITE = 3
_UNKNOWN = -1
# Below the frame of the user are those of torch; deeper calls than this are not looked through.
_MAX_DEPTH = 12


class _Op:
    """One send or receive; ``peer`` is a rank of its group."""

    __slots__ = ("count", "group", "is_on_cpu", "kind", "peer", "site", "tag", "thread_id", "work")

    def __init__(self, kind: str, peer: int, tag: int, group: str) -> None:
        self.kind = kind
        self.peer = peer
        self.tag = tag
        self.group = group
        self.thread_id = threading.get_ident()
        self.count = 0
        self.site: list[tuple[str, str, int]] = []
        self.is_on_cpu = False
        self.work: weakref.ref[Any] | None = None

    def is_pending(self) -> bool:
        """Tell whether somebody may still wait for the op.

        Nobody waits for an op whose handle is gone. gloo marks an op as completed in the wait for
        it. A device is not asked: that may block.
        """
        work = None if self.work is None else self.work()
        return work is not None and self.is_on_cpu and not work.is_completed()


_OPS: deque[_Op] = deque(maxlen=_MAX_OPS)
_LAST_BY_KEY: dict[tuple[str, str, int], _Op] = {}
# The groups that were there when room was made the last time.
_SWEPT: list[set[str]] = []
# How many keys there may be before room is made.
_ROOM = [_LEAST_KEYS]


def post(kind: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> _Op | None:
    """Note an op before it is posted, from the arguments of the method of ``ProcessGroup``."""
    try:
        op = _read_call(kind, arguments, keywords)
        op.site = find_site(sys._getframe(2))
        key = (op.group, op.kind, op.peer)
        last = _LAST_BY_KEY.get(key)
        if last is None and len(_LAST_BY_KEY) >= _ROOM[0] and not _make_room():
            return None
        op.count = 1 if last is None else last.count + 1
        _LAST_BY_KEY[key] = op
        _OPS.append(op)
    except Exception as error:  # the op itself goes on
        let_through(error)
        return None
    return op


def _make_room() -> bool:
    """Forget the ops of groups that are gone; return whether there is room then."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    names = {str(name) for name in list(world.pg_names.values())}
    if [names] == _SWEPT:
        _ROOM[0] = _MAX_KEYS
        return len(_LAST_BY_KEY) < _MAX_KEYS
    _SWEPT[:] = [names]
    for key in list(_LAST_BY_KEY):
        if key[0] not in names:
            _LAST_BY_KEY.pop(key, None)
    _ROOM[0] = min(_MAX_KEYS, max(_LEAST_KEYS, 2 * len(_LAST_BY_KEY)))
    return len(_LAST_BY_KEY) < _MAX_KEYS


def keep_handle(op: _Op | None, work: object) -> None:
    """Note the handle of an op that was posted."""
    try:
        if op is not None and work is not None:
            op.work = weakref.ref(work)
    except Exception as error:  # the op itself goes on
        let_through(error)
        return


def _read_call(kind: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> _Op:
    values = list(arguments)
    group = values.pop(0)
    tensors = values.pop(0) if values else keywords.get("tensors", ())
    peer = _UNKNOWN
    if kind != ANY:
        name = "dstRank" if kind == SEND else "srcRank"
        peer = int(values.pop(0) if values else keywords[name])
    tag = int(values.pop(0) if values else keywords.get("tag", 0))
    op = _Op(kind, peer, tag, str(group.group_name))
    op.is_on_cpu = bool(tensors) and tensors[0].device.type == "cpu"
    return op


def find_site(frame: FrameType | None, max_depth: int = _MAX_DEPTH) -> list[tuple[str, str, int]]:
    """Return the user's innermost frames, as plain values; few, and none from deep below torch."""
    torch_dir = os.path.dirname(str(sys.modules["torch"].__file__)) + os.sep
    site: list[tuple[str, str, int]] = []
    depth = 0
    while frame is not None and len(site) < _MAX_SITE and depth < max_depth:
        name = frame.f_code.co_filename
        if site or not name.startswith(torch_dir):
            site.append((frame.f_code.co_name, name, frame.f_lineno))
        frame = frame.f_back
        depth += 1
    return site


def dump_peers(path: str) -> bool:
    """Write ``peers.json``: what each thread waits for, and how much was posted to whom."""
    try:
        files.write_json(path, _describe_all())
    except Exception:  # the beats go on
        return False
    return True


def _describe_all() -> dict[str, object]:
    groups = _read_groups()
    counts = [
        {
            "kind": op.kind,
            "peer": groups.find(op.group, op.peer),
            "group": op.group,
            "count": op.count,
            "site": name_frames(op.site),
        }
        for op in list(_LAST_BY_KEY.values())
    ]
    waits = list(_list_waits(groups))[:_MAX_WAITS]
    return {"pid": os.getpid(), "waits": waits, "counts": counts}


class _Groups:
    """Members of the process groups, as torch's Python side knows them."""

    def __init__(self) -> None:
        self.members: dict[str, list[int]] = {}
        self.names: dict[int, str] = {}
        self.default = ""

    def find(self, name: str, group_rank: int) -> int:
        """Return the global rank of a rank of a group; -1 when unknown."""
        members = self.members.get(name, [])
        return members[group_rank] if 0 <= group_rank < len(members) else _UNKNOWN


def _read_groups() -> _Groups:
    groups = _Groups()
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    if world is None:
        return groups
    for group, ranks in list(world.pg_group_ranks.items()):
        name = str(world.pg_names.get(group, ""))
        groups.names[id(group)] = name
        groups.members[name] = sorted(ranks, key=ranks.get)
        if group is world.default_pg:
            groups.default = name
    return groups


def _list_waits(groups: _Groups) -> Iterator[dict[str, object]]:
    main_id = threading.main_thread().ident
    own_id = threading.get_ident()
    frames = sys._current_frames()
    # The main thread first: what does not fit is cut.
    for thread_id in sorted(frames, key=lambda one: one != main_id):
        if thread_id == own_id:
            continue
        for wait in _look_at(frames[thread_id], thread_id, groups):
            yield {**wait, "is_main": thread_id == main_id}


def _look_at(frame: FrameType, thread_id: int, groups: _Groups) -> list[dict[str, object]]:
    """Tell what a thread at this frame waits for; nothing when it does not wait for a peer."""
    place = name_frames(_list_frames(frame))
    call = _find_call(frame)
    if call is not None and call.f_code.co_name == "monitored_barrier":
        return [{**_describe_barrier(call, groups), "frames": place}]
    mine = [op for op in list(_OPS) if op.thread_id == thread_id]
    if call is not None:
        # The last op of a thread that is inside send or recv is the one that it is in.
        kinds = _KINDS_BY_CALL[call.f_code.co_name]
        mine = [op for op in mine[-1:] if op.kind in kinds and _is_of(op, call)]
    elif _is_in_wait(frame):
        mine = [op for op in mine if op.is_pending()]
    else:
        mine = []
    sure = len(mine) == 1
    return [{**_describe(op, groups), "sure": sure, "frames": place} for op in mine]


def _is_of(op: _Op, call: FrameType) -> bool:
    """Tell whether an op can be that of a call: one that begins has posted none yet."""
    here = find_site(call)
    return not here or not op.site or here[0] == op.site[0]


def _is_in_wait(frame: FrameType) -> bool:
    """Tell whether the line that a frame is at calls ``wait`` of something."""
    code = frame.f_code
    if not any(name in code.co_names for name in _WAIT_NAMES):
        return False
    # Not imported: the main thread may be stuck in an import, and torch has imported it.
    dis: Any = sys.modules.get("dis")
    if dis is None:
        return True
    line, on_line = 0, []
    for step in dis.get_instructions(code):
        start = step.starts_line
        # A bool since Python 3.13, the number of the line before.
        number = getattr(step, "line_number", start) if isinstance(start, bool) else start
        line = number or line
        if step.offset <= frame.f_lasti and line == frame.f_lineno:
            on_line.append(step.argval)
    return any(name in on_line for name in _WAIT_NAMES)


def _find_call(frame: FrameType | None) -> FrameType | None:
    """Find the call of torch.distributed that a thread is in, when it is about one peer."""
    depth = 0
    while frame is not None and depth < _MAX_DEPTH:
        code = frame.f_code
        if code.co_filename.endswith(_C10D_FILE):
            is_known = code.co_name in _KINDS_BY_CALL or code.co_name == "monitored_barrier"
            return frame if is_known else None
        if f"{os.sep}probe{os.sep}" not in code.co_filename:
            return None
        frame = frame.f_back
        depth += 1
    return None


def _describe(op: _Op, groups: _Groups) -> dict[str, object]:
    return {
        "kind": op.kind,
        "peer": groups.find(op.group, op.peer),
        "group": op.group,
        "tag": op.tag,
        "count": op.count,
        "site": name_frames(op.site),
    }


def _describe_barrier(call: FrameType, groups: _Groups) -> dict[str, object]:
    """Describe a monitored barrier, in which all others wait for the first rank of the group."""
    # The snapshot of the locals lives as long as the call, and holds the group only.
    group = call.f_locals.get("group")
    name = groups.default if group is None else groups.names.get(id(group), "")
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    first = groups.find(name, 0)
    own = c10d.get_rank()
    return {
        "kind": BARRIER,
        "peer": _UNKNOWN if first == own else first,
        "group": name,
        "sure": first != own,
    }


def _list_frames(frame: FrameType | None) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        code = frame.f_code
        found.append((code.co_name, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return found


def name_frames(frames: list[tuple[str, str, int]]) -> list[dict[str, object]]:
    """Return frames as the records of the evidence folder have them."""
    return [{"name": name, "filename": file, "line": line} for name, file, line in frames]
