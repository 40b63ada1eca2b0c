"""Checks of the user: called before and after ops, or when one fails; a breakpoint is one."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading

from .. import files
from ..calling.wanted import Wanted
from ..serving import visitors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

    from .lines import Lines
    from .op import Op
    from .spec import Call


_MAX_CHARS = 2000
_STDERR = 2
_LOCK = threading.Lock()


class UserCall:
    """One ``call`` item; what it names is imported at the first op, when the job is ready."""

    def __init__(self, call: Call, lines: Lines) -> None:
        self._call = call
        self._lines = lines
        self._target: Any = None
        self._is_resolved = False
        self._has_shown_error = False
        self._shown: set[str] = set()
        # What stops or ends the job must do so in the thread that issued the op.
        self.needs_sync = call.action != "log"

    def takes(self, op: Op) -> bool:
        """Tell whether an op is one that is asked about."""
        ranks, ops = self._call.ranks, self._call.ops
        return (ranks is None or op.rank in ranks) and (not ops or op.name in ops)

    def before(self, op: Op) -> None:
        """Ask about an op that is about to be issued."""
        self._ask("before", op)

    def after(self, op: Op) -> None:
        """Ask about an op that is over."""
        self._ask("after", op)

    def on_error(self, op: Op, error: BaseException) -> None:
        """Tell of an op that has failed."""
        self._ask("on_error", op, error)

    def _ask(self, method: str, op: Op, *more: object) -> None:
        try:
            ask = self._find(method)
            said = ask(op, *more) if ask is not None else None
        except (Exception, SystemExit) as error:  # Ctrl-C goes its way
            self._fail(op, error)
            return
        if said:
            self._act(op, str(said)[:_MAX_CHARS])

    def _find(self, method: str) -> Any:
        if not self._is_resolved:
            self._is_resolved = True
            module, _, name = self._call.target.partition(":")
            target: Any = importlib.import_module(module)
            for part in name.split("."):
                target = getattr(target, part)
            self._target = target() if isinstance(target, type) else target
        if method == "before" and callable(self._target) and not hasattr(self._target, method):
            return self._target
        return getattr(self._target, method, None)

    def _act(self, op: Op, text: str) -> None:
        self._lines.put({"kind": "said", "call": self._call.target, "text": text, **op.describe()})
        where = f"rank {op.rank}, {op.name} {op.seq} of group {op.group}, step {op.step}"
        message = f"{self._call.target}: {text} ({where})"
        if self._call.action == "raise":
            raise Wanted(f"whystuck: {message}")
        if text not in self._shown and len(self._shown) < _MAX_CHARS:
            self._shown.add(text)
            say(message)
        if self._call.action == "break":
            stop(op, say)

    def _fail(self, op: Op, error: BaseException) -> None:
        """Tell of an error of the check itself, once."""
        what = f"{type(error).__name__}: {error}"[:_MAX_CHARS]
        if not self._has_shown_error:
            self._has_shown_error = True
            text = f"{self._call.target} failed and is asked on: {what}"
            self._lines.put({"kind": "call-error", "call": self._call.target, "text": what})
            if self._call.action != "raise":
                say(text)
        if self._call.action == "raise":
            raise Wanted(f"whystuck: {self._call.target}: {what} (rank {op.rank})") from error


def say(text: str) -> None:
    """Print one line on standard error, in one piece: many ranks may do so at once."""
    try:
        os.write(_STDERR, f"whystuck: {text}\n".encode("utf-8", "replace"))
    except OSError:
        return


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
