"""H119 compile-divergence."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.rule_kinds import SuspectRule


class CompileDivergence(SuspectRule):
    """A rank is in a compiler while the others wait, and it stands still or compiles alone.

    ## What it means

    `torch.compile` or Triton compiles on some ranks only: a shape, a branch or a setting that
    differs between ranks makes one of them compile again and again. Or the compiler hangs: on the
    lock of a cache that another process holds, or on a compile worker that is gone.

    ## How it is found

    The main thread of a suspect is in the frames of a compiler. Over all samples nothing moves,
    neither its frames nor the processor time of the process and its children; or training had
    found its rhythm, and no more than half of the ranks compile. That one is only `possible`
    until the stall is ten times the longest gap seen. A stack that somebody pastes alone is taken
    as where the job stands, and the finding is `possible`. `details.state` is `blocked`, `running`
    or `unknown`, `details.compiling` has all ranks that are in a compiler.

    Of logs, from lines of compilers behind which a rank prints no more, and from what torch prints
    with `TORCH_LOGS=recompiles`: only one rank compiled again when the wait of the others began.

    ## False alarms

    A long recompilation on one rank that ends by itself. A first compilation that works is H117.

    ## What to do

    Run with `TORCH_LOGS=recompiles` on the rank named. Give all ranks the same shapes and settings,
    mark sizes that change with `torch._dynamo.mark_dynamic`, and give each rank a cache folder of
    its own when they share one over a network file system.
    """

    code = codes.COMPILE_DIVERGENCE
    name = "compile-divergence"
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "run with `TORCH_LOGS=recompiles` to see why the rank compiles, and give all ranks the "
            "same shapes and settings, or mark the size that changes with "
            "`torch._dynamo.mark_dynamic`"
        ),
        (
            "when nothing moves, look for a lock that another process holds: give each rank a "
            "`TORCHINDUCTOR_CACHE_DIR` and `TRITON_CACHE_DIR` of its own"
        ),
    )
