"""H120 by pasted stacks: a rank raised an exception, and its process is still there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame
from whystuck.diagnose.algorithms.stacks.positions import Doing, locate
from whystuck.diagnose.logs.cases.parts import WAITS, is_said, list_ranks, place_exceptions
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.finding import Citation
from whystuck.evidence.live import PythonException, StackSample


def make_not_ended(view: LogView) -> Iterator[Case]:
    """Make a case of each rank whose main thread waits for other threads after an exception.

    Only of pasted stacks, which people take of what does not end. Whystuck looks at each rank that
    raised, on its way out, and knows by its exit whether it went: its own stacks are judged so.
    """
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    for item in view.exceptions:
        if is_cascade(item) or not item.is_main_thread:
            continue
        found = item if item.rank >= 0 else _find_raiser(view, item, last)
        sample = last.get(found.rank)
        if sample is not None and _stands_later(sample, item) and _is_exiting(sample):
            waits = list_ranks(one for one in view.list_signatures(*WAITS) if is_said(one))
            others = sorted({*last, *(rank for rank in waits if rank >= 0)} - {found.rank})
            yield _tell(found, item, sample, others)


def _find_raiser(
    view: LogView, item: PythonException, last: Mapping[int, StackSample]
) -> PythonException:
    """Find whose an exception is that no line signs: of the one rank there that is at its end.

    It must have left the program, and no other exception may have done so there.
    """
    left = [rank for rank, sample in last.items() if _is_exiting(sample)]
    is_uncaught = bool(item.frames) and item.frames[-1].function == "<module>"
    others = [one for one in view.exceptions if one is not item and not is_cascade(one)]
    is_alone = not any(_may_share(view, item, one.node, one.rank) for one in others)
    left = [rank for rank in left if _may_share(view, item, "", rank)]
    is_clear = len(left) == 1 and is_uncaught and is_alone
    return replace(item, rank=left[0]) if is_clear else item


def _may_share(view: LogView, item: PythonException, node: str, rank: int) -> bool:
    """Tell whether a rank may run where an exception was raised."""
    node = node or view.node_by_rank.get(rank, "")
    return not node or not item.node or is_same_host(node, item.node)


def _stands_later(sample: StackSample, item: PythonException) -> bool:
    """Tell whether somebody pasted a stack that was taken after an exception."""
    if sample.row is None:
        return False
    return sample.artifact != item.artifact or sample.row > (item.row or 0)


def _is_exiting(sample: StackSample) -> bool:
    return sample.main is not None and locate(sample.main.frames).doing is Doing.EXITING


def _tell(
    item: PythonException, told: PythonException, sample: StackSample, others: list[int]
) -> Case:
    threads = [
        (one.name, frame)
        for one in sample.threads
        if one is not sample.main and (frame := find_user_frame(one.frames)) is not None
    ]
    held = [f"thread {name} is in {frame.function}" for name, frame in threads[:2]]
    why = f", as {' and '.join(held)}" if held else ""
    message = item.message.partition("\n")[0]
    return Case(
        code=codes.EXCEPTION_HANGING,
        summary=f"rank {item.rank} raised {item.type}({message!r:.120}) but its process does not "
        f"end{why}",
        # The same exception alone would be taken for the end of its rank.
        tier=OWN - 1,
        ranks=(item.rank,),
        victims=tuple(others),
        exceptions=(told,),
        where=place_exceptions((item,)),
        time=item.time,
        details={"exception": item.type, "message": message, "now": Doing.EXITING.value},
        cites=(
            Citation(
                f"the main thread of rank {item.rank} waits for its other threads",
                sample.artifact,
                sample.row,
            ),
        ),
    )
