"""S311 memory-pressure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Rule
from whystuck.evidence.finding import Finding, Severity


class MemoryPressure(Rule):
    """The memory of the devices is nearly full, and their allocator gives its cache back in steps.

    ## What it means

    When a tensor does not fit any more, the allocator waits for the device, frees what it keeps for
    reuse, and asks the driver again. A step in which that happens several times takes a multiple of
    its time. Nothing is stuck, and no rank is special.

    ## How it is found

    DeepSpeed warns of `pytorch allocator cache flushes since last step`: three such lines tell. So
    do ten retries in `num_alloc_retries` of `torch.cuda.memory_stats()` or in `memory_summary()`.

    ## False alarms

    A few flushes when a job starts, evaluates or saves. They cost little, and less than three lines
    are not told.

    ## What to do

    Use less memory: shorter sequences, a smaller micro batch, more recomputation. Compare the time
    of a step before the first such line with that of one behind it.
    """

    code = codes.MEMORY_PRESSURE
    name = "memory-pressure"
    severity = Severity.WARNING
    needs = ("logs",)
    remedies: ClassVar[tuple[str, ...]] = (
        "use a smaller micro batch or shorter sequences, or recompute more",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when logs tell of such steps."""
        del policy
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
