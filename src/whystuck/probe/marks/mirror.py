"""Marks shown to the tools that listen to NVTX, ITT or mstx, where that was asked for.

Nothing is imported for it. The functions below those that the job calls are used, so that what is
shown is not read as a range of the job's.
"""

from __future__ import annotations

import os
import sys
import threading

from ..calling.interrupts import let_through
from .ring import BACKWARD, CHECKPOINT, DATALOADER, FORWARD, OPTIMIZER, STEP, MarkRing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIRROR_ENV = "WHYSTUCK_MIRROR_MARKS"
_KINDS = {
    STEP: "step", DATALOADER: "dataloader", FORWARD: "forward", BACKWARD: "backward",
    OPTIMIZER: "optimizer", CHECKPOINT: "checkpoint",
}  # fmt: skip
# Of ranges that have begun and have no end.
_MAX_OPEN = 1024


class _Nvtx:
    """NVTX: ranges have handles, and may end anywhere."""

    def begin(self, text: str) -> Any:
        return sys.modules["torch.cuda.nvtx"]._nvtx.rangeStartA(text)

    def end(self, handle: Any) -> None:
        sys.modules["torch.cuda.nvtx"]._nvtx.rangeEnd(handle)

    def show(self, text: str) -> None:
        sys.modules["torch.cuda.nvtx"]._nvtx.markA(text)


class _Mstx:
    """mstx, on the current stream; not before the job has a device."""

    def begin(self, text: str) -> Any:
        return self._find("range_start")(text, self._stream())

    def end(self, handle: Any) -> None:
        self._find("range_end")(handle)

    def show(self, text: str) -> None:
        self.end(self.begin(text))

    def _find(self, name: str) -> Any:
        found = getattr(sys.modules["torch_npu.npu.mstx"].mstx, name)
        return getattr(found, "__wrapped__", found)

    def _stream(self) -> Any:
        npu = sys.modules["torch_npu.npu"]
        if not npu.is_initialized():
            raise _NotYetError
        return npu.current_stream()


class _NotYetError(Exception):
    pass


class _Itt:
    """ITT: ranges of a thread are nested; one that ends too early goes with those within it."""

    def __init__(self) -> None:
        self._threads = threading.local()
        self._ended: set[int] = set()
        self._number = 0

    def begin(self, text: str) -> int:
        self._settle()
        sys.modules["torch.profiler.itt"]._itt.rangePush(text)
        self._number = number = self._number + 1
        self._stack().append(number)
        return number

    def end(self, handle: int) -> None:
        self._ended.add(handle)
        self._settle()

    def show(self, text: str) -> None:
        sys.modules["torch.profiler.itt"]._itt.mark(text)

    def _settle(self) -> None:
        stack = self._stack()
        while stack and stack[-1] in self._ended:
            self._ended.discard(stack.pop())
            sys.modules["torch.profiler.itt"]._itt.rangePop()

    def _stack(self) -> list[int]:
        stack: list[int] = self._threads.__dict__.setdefault("stack", [])
        return stack


_TOOLS: dict[str, type[Any]] = {"nvtx": _Nvtx, "itt": _Itt, "mstx": _Mstx}


class Mirror:
    """Shows marks; no method raises, and a tool that cannot be reached is left."""

    def __init__(self, ring: MarkRing, names: list[str]) -> None:
        self._ring = ring
        self._tools = [_TOOLS[name]() for name in names if name in _TOOLS]
        self._open: dict[int, list[tuple[Any, Any]]] = {}
        self._texts: dict[int, str] = {}

    def begin(self, number: int, kind: int, name: int) -> None:
        """Show that the mark of a number begins."""
        text = self._find_text(kind, name)
        handles = []
        for tool in list(self._tools):
            try:
                handles.append((tool, tool.begin(text)))
            except Exception as error:  # as below
                self._leave(tool, error)
        if len(self._open) < _MAX_OPEN:
            self._open[number] = handles

    def end(self, number: int) -> None:
        """Show that it ends."""
        for tool, handle in self._open.pop(number, ()):
            try:
                tool.end(handle)
            except Exception as error:  # as below
                self._leave(tool, error)

    def show(self, kind: int, name: int) -> None:
        """Show an instant."""
        text = self._find_text(kind, name)
        for tool in list(self._tools):
            try:
                tool.show(text)
            except Exception as error:  # the job goes on without it
                self._leave(tool, error)

    def _leave(self, tool: Any, error: Exception) -> None:
        let_through(error)
        if not isinstance(error, _NotYetError) and tool in self._tools:
            self._tools.remove(tool)

    def _find_text(self, kind: int, name: int) -> str:
        if name and name not in self._texts:
            self._texts = self._ring.list_names()
        text = self._texts.get(name, "") if name else ""
        return f"{_KINDS[kind]}: {text}".rstrip(": ") if kind in _KINDS else text


def make_mirror(ring: MarkRing) -> Mirror | None:
    """Return what shows marks as the environment of the job asks for; None where it does not."""
    asked = os.environ.get(MIRROR_ENV, "")
    return Mirror(ring, asked.split(",")) if asked else None
