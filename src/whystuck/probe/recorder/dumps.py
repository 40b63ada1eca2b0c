"""Flight-recorder dumps of this process, as pickles that only hold plain values."""

from __future__ import annotations

import os
import sys
import types

from .. import cuda, files
from ..heap import HEAP
from ..threads import OwnThread
from . import recorders

# The names of the incident's folder, whystuck.evidence.records.
_FIRST = "fr.pickle"
_SECOND = "fr_gloo.pickle"


def dump_recorder(path: str) -> bool:
    """Write the recorder without frames, then again with frames over it.

    The first dump is cheap and sure; the second is what names the line. Where both recorders of a
    torch are in use, NCCL's goes to ``path`` and the other one beside it. Returns whether
    anything was written: while a CUDA graph is captured nothing is, as a dump asks about events.
    """
    HEAP.note_use()
    with cuda.Asking() as may_ask:
        return may_ask and _dump(path)


def _dump(path: str) -> bool:
    found = recorders.list_recorders()
    used = [one for one in found if not one.is_unused()] or found[-1:]
    for one, target in zip(used, (path, _beside(path))):
        files.write_atomically(target, one.dump(with_frames=False))
        files.write_atomically(target, _with_frames(one))
    return bool(used)


def dump_recorder_within(path: str, limit_s: float) -> None:
    """Write the recorder, unless it takes longer than ``limit_s`` seconds; never raises.

    For ways out of the process, which a recorder whose lock is held must not bar.
    """
    try:
        worker = OwnThread(lambda: dump_recorder(path), "whystuck-leaving")
        worker.start()
        worker.join(limit_s)
    except Exception:  # no room for a thread: the process goes without a dump
        return


def _beside(path: str) -> str:
    """Return the path for the second recorder: ``fr_gloo.pickle``, or ``final-gloo-PID``."""
    folder, name = os.path.split(path)
    if name == _FIRST:
        return os.path.join(folder, _SECOND)
    kind, _, pid = name.rpartition("-")
    return os.path.join(folder, f"{kind}-gloo-{pid}")


def _with_frames(recorder: recorders.Recorder) -> bytes:
    """Dump with frames, without the import that torch's symboliser triggers.

    It asks ``hasattr(torch, "_inductor")``, a lazy import of 800 modules that takes seconds. An
    empty stand-in for the time of the dump keeps it out.
    """
    torch = sys.modules["torch"]
    if "_inductor" in torch.__dict__:
        return recorder.dump(with_frames=True)
    stand_in = types.SimpleNamespace()
    torch.__dict__["_inductor"] = stand_in
    try:
        return recorder.dump(with_frames=True)
    finally:
        if torch.__dict__.get("_inductor") is stand_in:
            del torch.__dict__["_inductor"]
