"""Keeping functions of ours out of what ``torch.compile`` traces."""

from __future__ import annotations

import sys
from types import FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def hide_functions(*places: Any) -> None:
    """Have the compiler pass by the functions of modules, classes or closures, not what they call.

    It may be at work around the call of a model, where it would try to compile them.
    """
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if frames is None:
        return
    for place in places:
        codes = [place] if isinstance(place, FunctionType) else list(vars(place).values())
        for found in codes:
            if isinstance(found, FunctionType):
                _skip(frames, found.__code__)
            elif isinstance(found, type) and found.__module__ == getattr(place, "__name__", ""):
                hide_functions(found)


def _skip(frames: Any, code: Any) -> None:
    if hasattr(frames, "skip_code"):
        frames.skip_code(code)
    else:
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        frames.set_code_exec_strategy(code, strategy)
