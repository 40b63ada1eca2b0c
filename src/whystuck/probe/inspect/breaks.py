"""A breakpoint in one rank: on the terminal where there is one, else over a socket."""

from __future__ import annotations

import os
import socket
import sys
import threading

from .. import files, visitors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

    from .op import Op

_LOCK = threading.Lock()


def stop(op: Op, say: Callable[[str], None]) -> None:
    """Stop this thread in the user's frame that issued an op, until somebody lets it go on."""
    frame = _find_frame(op)
    if frame is None or not _LOCK.acquire(blocking=False):
        return
    import pdb  # noqa: T100 - it is what was asked for

    try:
        if sys.stdin is not None and sys.stdin.isatty() and os.isatty(1):
            _interact(pdb.Pdb(nosigint=True), frame)
        else:
            _serve(pdb.Pdb, frame, op, say)
    finally:
        _LOCK.release()


def _serve(debugger: Any, frame: FrameType, op: Op, say: Callable[[str], None]) -> None:
    """Let one visitor in over a unix socket of the job folder, which only this user can open."""
    path = files.path_of("pdb")
    if os.path.exists(path):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen(1)
        say(f"rank {op.rank} waits at a breakpoint; attach with: nc -U {path}")
        visitor = None
        while visitor is None:
            visitor = visitors.accept(server)
    os.unlink(path)
    # Two files: one for both ways would lose what was read ahead when it is written to.
    try:
        with (
            visitor,
            visitor.makefile("r", encoding="utf-8", errors="replace") as asked,
            visitor.makefile("w", encoding="utf-8", errors="replace") as said,
        ):
            _interact(debugger(stdin=asked, stdout=said, nosigint=True, readrc=False), frame)
    except OSError:  # the visitor has gone
        return


def _interact(debugger: Any, frame: FrameType) -> None:
    """Give a prompt in a frame; nothing is traced, so that going on costs nothing."""
    debugger.reset()
    debugger.interaction(frame, None)


def _find_frame(op: Op) -> FrameType | None:
    """Return the frame of the user's line that issued an op."""
    frame: FrameType | None = sys._getframe(1)
    if not op.site:
        return None
    function, file, _ = op.site[0]
    while frame is not None:
        if (frame.f_code.co_name, frame.f_code.co_filename) == (function, file):
            return frame
        frame = frame.f_back
    return None
