"""Checks of the user: called before and after ops, or when one fails."""

from __future__ import annotations

import importlib
import os

from ..wanted import Wanted
from . import breaks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .lines import Lines
    from .op import Op
    from .spec import Call

_MAX_CHARS = 2000
_STDERR = 2


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
            breaks.stop(op, say)

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
