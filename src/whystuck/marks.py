"""Marks in the code of a job, for whoever wants more than is marked by itself.

Nothing here costs more than half a microsecond, or does anything at all, where no ``whystuck run``
watches the process, and while marks are off.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

_PROBE = "_whystuck_probe"


class _NoMark:
    """A mark that nobody records."""

    __slots__ = ()

    def begin(self) -> _NoMark:
        """Do nothing."""
        return self

    def end(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


_NO_MARK = _NoMark()


def mark(name: str, stream: object = None) -> Any:  # noqa: ANN401 - of the probe, or nothing
    """Mark this moment, or a range of the code.

    Args:
        name: What the reports call it; of one name, there may be any number of marks.
        stream: Of a range, the stream of a device that works on it, such as
            ``torch.cuda.current_stream()``. The time of the device is marked beside that of the
            host; nothing waits for it.

    Returns:
        A context manager for a range, ``with whystuck.mark("tokenize"):``. Its methods ``begin``
        and ``end`` do the same. Where neither is used, the mark is the moment of this call.
    """
    if _is_compiling():
        return _NO_MARK
    user = sys.modules.get(_PROBE + ".marks.user")
    return (user and user.mark(name, stream)) or _NO_MARK


def step(index: int | None = None) -> None:
    """Tell that a step of the training loop has ended; for loops without an optimizer of torch.

    From the first call on, steps of optimizers are not counted any more. All ranks must call it.

    Args:
        index: The loop's own number of the step. Steps are counted by whystuck where it is left
            out, or not larger than before.
    """
    if _is_compiling():
        return
    progress = sys.modules.get(_PROBE + ".progress")
    if progress is not None:
        progress.tell_step(index)


def _is_compiling() -> bool:
    """Return whether ``torch.compile`` reads this, which would part the graph at a mark."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())
