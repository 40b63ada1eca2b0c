"""H120 by pasted stacks: a rank raised an exception, and its process is still there."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame
from whystuck.diagnose.algorithms.stacks.positions import Doing, locate
from whystuck.diagnose.logs.cases.parts import place_exceptions
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation
from whystuck.evidence.live import PythonException, StackSample


def make_not_ended(view: LogView) -> Iterator[Case]:
    """Make a case of each rank whose main thread waits for other threads after an exception.

    Only of pasted stacks, which people take of what does not end. Whystuck looks at each rank that
    raised, on its way out, and knows by its exit whether it went: its own stacks are judged so.
    """
    last = {one.rank: one for one in view.evidence.stacks if not one.worker and one.rank >= 0}
    for item in view.exceptions:
        sample = last.get(item.rank)
        if sample is None or sample.main is None or is_cascade(item) or not item.is_main_thread:
            continue
        if sample.row is None:
            continue
        is_later = sample.artifact != item.artifact or sample.row > (item.row or 0)
        if is_later and locate(sample.main.frames).doing is Doing.EXITING:
            yield _tell(item, sample, sorted(last.keys() - {item.rank}))


def _tell(item: PythonException, sample: StackSample, others: list[int]) -> Case:
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
        exceptions=(item,),
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
