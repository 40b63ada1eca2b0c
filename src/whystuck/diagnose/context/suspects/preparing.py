"""Explains a rank that prepares data or weights while others wait, by its bar of progress."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame, is_in
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import Suspicion, get_frames
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ops.collectives import Frame

_SETUP = "progress.setup"
_WHOLE, _LEAST_LOOKS = 100, 2
# Libraries in which data and weights are prepared, and what own functions for it are called.
_LIBRARIES = ("/arrow_dataset.py", "datasets/builder.py", "/tokenization_", "huggingface_hub/")
_WORDS = re.compile(
    r"(?:^|_)(?:tokeni[sz]e|encode|pre_?process|prepare|build|index|download|extract|pack|filter)",
    re.IGNORECASE,
)


def explain_preparing(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank whose bar moves below the stacks that people show of it and of the others."""
    frames, samples = get_frames(facts, rank), facts.stacks.samples_by_rank.get(rank, ())
    if not samples or samples[-1].row is None or not any(_prepares(frame) for frame in frames):
        return None
    main = samples[-1].main
    if rank in facts.waits.waiting_by_stack or (main is not None and main.active is False):
        return None
    bars = _list_moving(facts.evidence.logs.events, rank)
    place = samples[-1].artifact, samples[-1].row
    if not bars or (bars[-1].artifact, bars[-1].row) < place or bars[-1].artifact != place[0]:
        return None
    first, last = (one.groups["pct"] for one in (bars[0], bars[-1]))
    user = find_user_frame(frames)
    return Suspicion(
        rank,
        codes.SETUP_SLOW,
        Confidence.LIKELY if main is not None and main.active else Confidence.POSSIBLE,
        f"prepares data or weights in {user.function if user else 'its main thread'}, and its bar "
        f"of progress moves: from {first} to {last} %",
        frames,
        because=(
            Citation(bars[-1].text.strip()[:120], bars[-1].artifact, bars[-1].row),
            facts.stacks.cite(rank, f"main thread of rank {rank}, last sample"),
        ),
        details={"state": "running"},
    )


def _prepares(frame: Frame) -> bool:
    return is_in(frame, *_LIBRARIES) or _WORDS.search(frame.function) is not None


def _list_moving(events: Sequence[LogEvent], rank: int) -> list[LogEvent]:
    """Return the last bar that may be of a rank, as often as it stands there, if it moves."""
    told = [
        one
        for one in events
        if one.signature == _SETUP and not one.is_past and one.rank in (-1, rank)
    ]
    bars = [one for one in told if one.groups.get("pct")]
    bars = [one for one in bars if _name(one) == _name(bars[-1])]
    shares = [int(one.groups["pct"]) for one in bars]
    is_open = len(bars) >= _LEAST_LOOKS and shares[-1] < _WHOLE
    is_moving = shares == sorted(set(shares)) and all(one.count == 1 for one in bars)
    return bars if is_open and is_moving else []


def _name(bar: LogEvent) -> tuple[str, str]:
    return bar.artifact, bar.text.partition("%")[0].rstrip(" 0123456789")
