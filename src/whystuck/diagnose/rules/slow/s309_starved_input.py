"""S309 starved-input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity


class StarvedInput(Rule):
    """All ranks wait for data for 40 % of each step or more.

    ## What it means

    Reading or preparing the data is slower than the training. No rank is slower than the others.

    ## How it is found

    From marks of data loaders (`whystuck run --marks`): the time in which the training loop waits
    for its next batch. `measures.input_share` is the share on the rank that waits least.

    Of logs alone, from the share that Lightning's profiler or torch.profiler prints, or from the
    time for data that programs print beside the time of each step. The same from times of phases of
    all ranks: Megatron's `batch-generator ...: (9015.44, 9044.10)` beside the time of the forward
    and the backward, in the last two reports or more, tables, and lines of ranks
    (`data_wait=8.02 fwd=0.51`). The rank that waits least must wait so long: one that waits alone
    is S301. What nfsiostat and iostat show of slow storage is told with it.

    ## False alarms

    A loop that does its own work inside the iterator of a data loader.

    ## What to do

    More workers, larger prefetch, data nearer to the nodes.
    """

    code = codes.STARVED_INPUT
    name = "starved-input"
    severity = Severity.WARNING
    needs = ("marks", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True)",
        "time one `dataset[i]`: what takes long, reading, decoding or augmenting?",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when all ranks wait for data."""
        del policy
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        share = scene.pace.step_marks.input_share
        if not share or not scene.pace.is_known:
            return
        yield self.make_finding(
            f"all ranks wait for data: {share:.0%} of each step",
            Confidence.LIKELY,
            Blame(),
            because=[
                Citation(f"each rank waits {share:.0%} of a step or more for its data loader")
            ],
            measures={"input_share": round(share, 4), "lost_share": round(share, 4)},
        )
