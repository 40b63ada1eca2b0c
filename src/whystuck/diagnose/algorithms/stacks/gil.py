"""Which threads wait for the GIL, by their native frames."""

from __future__ import annotations

from whystuck.evidence.live import ThreadStack

# A thread in one of these has no GIL, and waits for it.
_WANTS = {"take_gil", "PyEval_RestoreThread", "PyEval_AcquireThread", "PyGILState_Ensure"}


def wants_gil(thread: ThreadStack) -> bool:
    """Tell whether a thread waits for the GIL."""
    return any(frame.function in _WANTS for frame in thread.frames)
