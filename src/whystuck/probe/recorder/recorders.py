"""Torch's flight recorders, under the names of each release.

A torch with NCCL has two of them: NCCL's own, and that of gloo and the other backends. Before 2.8
there was only NCCL's. Which functions there are, and which switches they take, differs too; each
may be absent.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Callable

# (what writes a pickle, what writes JSON without frames), the recorder of NCCL first
_FUNCTIONS = (
    ("_dump_nccl_trace", "_dump_nccl_trace_json"),
    ("_dump_fr_trace", "_dump_fr_trace_json"),
)
_COUNTERS = tuple(
    re.compile(rb'"last_%s_collective"\s*:\s*"?(\d+)' % word)
    for word in (b"enqueued", b"completed")
)
# Torch keeps the counters of groups that are gone: to decode those of 3,000 takes up to 80 ms, to
# look for the numbers 0.6 ms.
_LONG_BYTES = 4096


class Recorder:
    """One of them; at least one of its two functions is there."""

    def __init__(
        self, to_pickle: Callable[..., bytes] | None, to_json: Callable[..., bytes] | None
    ) -> None:
        self._to_pickle = to_pickle
        self._to_json = to_json

    def dump(self, *, with_frames: bool) -> bytes:
        """Return all collectives, as a pickle where that can be had, else as JSON."""
        if self._to_pickle is not None:
            return _call(self._to_pickle, True, with_frames, False)
        return _call(self._to_json, True, False)

    def count_collectives(self) -> tuple[int, int]:
        """Return how many collectives were enqueued and completed, over all groups.

        Without entries the dump is some 200 bytes and costs about 0.05 ms.
        """
        if self._to_json is None:
            return 0, 0
        data = _call(self._to_json, False, False)
        if len(data) > _LONG_BYTES:
            enqueued, completed = (sum(map(int, one.findall(data))) for one in _COUNTERS)
            return enqueued, completed
        enqueued = completed = 0
        for status in _decode_status(data).values():
            enqueued += max(0, int(status.get("last_enqueued_collective", 0)))
            completed += max(0, int(status.get("last_completed_collective", 0)))
        return enqueued, completed

    def is_unused(self) -> bool:
        """Tell whether it surely holds nothing."""
        if self._to_json is None:
            return False
        data = _call(self._to_json, False, False)
        return len(data) <= _LONG_BYTES and not _decode_status(data)


def _decode_status(data: bytes) -> dict[str, dict[str, Any]]:
    status = json.loads(data).get("pg_status")
    return status if isinstance(status, dict) else {}


def list_recorders() -> list[Recorder]:
    """Return the recorders of this torch, that of NCCL first; none without torch."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    pairs = [[getattr(c10d, name, None) for name in names] for names in _FUNCTIONS]
    return [Recorder(*pair) for pair in pairs if any(pair)]


def has_group() -> bool:
    """Tell whether a process group is there.

    Torch makes its recorder when it is first read, with the buffer size of that moment; the
    script may set another one up to its first group.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return bool(getattr(getattr(c10d, "_world", None), "pg_map", None))


def _call(function: Any, *switches: bool) -> bytes:
    try:
        return bytes(function(*switches))
    except TypeError:  # before 2.4 there were no switches
        return bytes(function())


def count_gone() -> int:
    """Return how many process groups the job has made that are gone, 0 when unknown."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    made = getattr(world, "group_count", 0)
    return max(0, made - len(getattr(world, "pg_map", ())))
