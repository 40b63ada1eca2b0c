"""What a finding says of ranks that are late in step after step."""

from __future__ import annotations

from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.algorithms.times.lateness import Late
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Confidence, Finding
from whystuck.evidence.ranks import name_ranks

_NS_PER_MS = 1e6
_PHASES = {
    "dataloader": ", waiting for its data",
    "forward": ", in its forward pass",
    "backward": ", in its backward pass",
    "optimizer": ", in its optimizer",
    "checkpoint": ", saving checkpoints",
    "host": ", between the phases of its step",
    "unknown": "",
}


def tell_late(
    rule: Rule, scene: Scene, policy: Policy, late: Late, *, node: str | None = None
) -> Finding:
    """Make the finding about ranks that are late, or about their node.

    Args:
        rule: Whose finding it is.
        scene: The evidence.
        policy: The thresholds.
        late: Who is late, since when, and what that costs.
        node: The node of all of them, where that is to blame.

    Returns:
        The finding.
    """
    lost_ms = late.lost_ns / _NS_PER_MS
    doubt = "" if late.is_sure else " (if the clocks of the ranks agree)"
    op, label = scene.ops.name_op(late.row), late.group.label
    who = name_ranks(late.ranks)
    verb = "is" if len(late.ranks) == 1 else "are"
    subject = who if node is None else f"node {node} is slow: {who}"
    phase = scene.pace.step_marks.name_phase(late)
    is_minority = 2 * len(late.ranks) < len(late.group.members) or len(late.ranks) == 1
    return rule.make_finding(
        f"{subject} {verb} late in {late.share_last:.0%} of the steps of group {label}"
        f"{_tell_when(scene, late)}, {lost_ms:.0f} ms after the others{doubt}: "
        f"{late.lost_share:.0%} of the time is lost{_PHASES[phase]}",
        Confidence.LIKELY if late.is_sure and is_minority else Confidence.POSSIBLE,
        Blame(
            ranks=late.ranks,
            nodes=[] if node is None else [node],
            groups=[label],
            victims=sorted(late.group.members.difference(late.ranks)),
            where=make_places(late.rank, scene.ops.get_site(late.row), policy.places_per_rank),
        ),
        because=[scene.ops.cite_row(late.row, f"rank {late.rank} is the last to issue this {op}")],
        details={"phase": phase, "clock_offset_ns": round(late.offset_ns)},
        measures={
            "lost_ms": round(lost_ms, 3),
            "lost_share": round(late.lost_share, 4),
            "share_last": round(late.share_last, 4),
        },
    )


def _tell_when(scene: Scene, late: Late) -> str:
    """Say since which step, and until when; nothing where they were late all the time."""
    steps = scene.ops.table.step
    first, last = (
        int(steps[row]) if row >= 0 and len(steps) else -1
        for row in (late.first_row, late.last_row)
    )
    if last >= 0:
        return f" from step {max(first, 0)} to {last}"
    if late.last_row >= 0:
        return " for a while"
    if first >= 0:
        return f" since step {first}"
    return " since it began in mid-run" if late.first_row >= 0 else ""
