"""What to show of the recorded ops, and how one op of some ranks is told."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.evidence.ops.collectives import Collectives
from whystuck.evidence.sections import RankClass, Site

LAST = 8
ALL = 0
MISMATCH_CAP = 10

DONE = "done"
STARTED = "started"
PENDING = "pending"
ABSENT = "absent"
UNKNOWN = "unknown"
END_UNKNOWN = "end unknown"


@dataclass(frozen=True)
class View:
    """What to show of the ops: how many of each group, of which ranks and groups.

    ``last`` is the number of ops a group, ``ALL`` for all. ``ranks`` and ``groups`` restrict what
    is shown when they are not empty; a group is meant by its name or its description.
    ``stacks`` asks for whole call stacks, ``mismatch_cap`` limits how many numbers of ops are
    listed that members do not agree on, and ``fold`` joins groups of which the same can be said.
    """

    last: int = LAST
    ranks: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    stacks: bool = False
    mismatch_cap: int = MISMATCH_CAP
    fold: bool = True

    def has_group(self, name: str, desc: str) -> bool:
        """Tell whether a group is to be shown."""
        return not self.groups or name in self.groups or desc in self.groups


def tell_class(
    table: Collectives, ranks: str, state: str, row: int, *, stacks: bool = False
) -> RankClass:
    """Describe what some ranks made of an op.

    Args:
        table: All ops.
        ranks: The ranks, as a set in text.
        state: What became of the op there.
        row: A row of one of the ranks; below 0 when none of them issued the op.
        stacks: Whether the whole call stack is wanted, not only the user's innermost frame.

    Returns:
        The description.
    """
    if row < 0:
        return RankClass(ranks=ranks, state=state)
    form = table.forms[int(table.form[row])]
    frames = table.sites[int(table.site[row])].frames
    shown = frames if stacks else select_user_frames(frames)[:1]
    return RankClass(
        ranks=ranks,
        state=state,
        op=form.label,
        sizes=[list(size) for size in form.input_sizes or form.output_sizes],
        dtypes=list(form.input_dtypes or form.output_dtypes),
        sites=[Site(frame.file, frame.line, frame.function) for frame in shown],
    )
