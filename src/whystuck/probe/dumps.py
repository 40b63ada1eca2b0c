"""Flight-recorder dumps of this process, as pickles that only hold plain values."""

from __future__ import annotations

import sys
import types
from typing import Any

from . import files


def dump_recorder(path: str) -> bool:
    """Write the recorder without frames, then again with frames over it.

    The first dump is cheap and sure; the second is what names the line. Returns whether
    anything was written.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None)
    if dump is None:
        return False
    files.write_atomically(path, dump(True, False, False))
    files.write_atomically(path, _with_frames(dump))
    return True


def _with_frames(dump: Any) -> bytes:
    """Dump with frames, without the import that torch's symboliser triggers.

    It asks ``hasattr(torch, "_inductor")``, a lazy import of 800 modules that takes seconds. An
    empty stand-in for the time of the dump keeps it out.
    """
    torch = sys.modules["torch"]
    if "_inductor" in torch.__dict__:
        return bytes(dump(True, True, False))
    stand_in = types.SimpleNamespace()
    torch.__dict__["_inductor"] = stand_in
    try:
        return bytes(dump(True, True, False))
    finally:
        if torch.__dict__.get("_inductor") is stand_in:
            del torch.__dict__["_inductor"]
