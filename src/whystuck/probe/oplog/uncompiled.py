"""Keeping the kernels of the op log, and all that runs in them, away from ``torch.compile``.

The compiler looks at each function of Python that runs below a compiled one, also where C++ calls
it. DDP issues an op there, and to compile a kernel ends the job where the compiler does not know an
instruction of it.
"""

from __future__ import annotations

import sys
from types import FunctionType, MethodType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def leave_uncompiled(function: Any) -> None:
    """Have the compiler pass by a function, and by what it calls."""
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if frames is None:
        return
    if not hasattr(frames, "skip_code"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
        return
    # In older releases what it calls is named one by one.
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    for one in (function, *cells):
        inner = one.__func__ if isinstance(one, MethodType) else one
        if isinstance(inner, FunctionType):
            frames.skip_code(inner.__code__)
