"""H101 by the prompt of a debugger: a breakpoint was left in, and a rank waits for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_PROMPT = "debug.prompt"
_NAMING = ("c10d.monitored_barrier", "c10d.desync", "c10d.desync_behind", "horovod.missing")
_MAX_LINES = 6


def make_debuggers(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that stand at a prompt while others wait in vain."""
    shown = [event for event in view.list_signatures(_PROMPT) if is_said(event)]
    prompts = [event for event in shown if not event.groups.get("file")]
    waits = [event for event in view.list_signatures(*WAITS, *_NAMING) if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    waiting = {*list_ranks(waits), *list_ranks(raised)}
    if not prompts or not (waits or raised):
        return
    ranks = tuple(sorted(set(list_ranks(prompts)) - waiting))
    if set(list_ranks(prompts)) & waiting or view.is_everywhere(ranks):
        return  # who gave up waiting may end in a debugger, too
    yield Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f"{name_ranks(ranks) if ranks else 'a process'} stands at the prompt of a "
        f"debugger{_find_place(shown, prompts)}, and waits for somebody to type",
        tier=PARTED - 1,
        ranks=ranks,
        victims=tuple(sorted(waiting)),
        lines=(*shown[-2:], *waits)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(waits, raised),
        details={"state": "unknown"},
        remedies=(
            "take the breakpoint out: `grep -rn 'breakpoint()\\|set_trace' .`",
            "torch.distributed.breakpoint(rank=0)   # one that all ranks wait at, on purpose",
        ),
    )


def _find_place(shown: Sequence[LogEvent], prompts: Sequence[LogEvent]) -> str:
    """Name the place that the debugger shows above its prompt."""
    last = prompts[-1]
    above = [
        event.groups
        for event in shown
        if event.groups.get("file") and event.artifact == last.artifact and event.row < last.row
    ]
    if not above:
        return ""
    file = above[-1]["file"].rpartition("/")[2]
    return f" in {above[-1]['fn']} ({file}.py:{above[-1]['line']})"
