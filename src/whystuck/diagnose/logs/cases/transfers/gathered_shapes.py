"""H106 by the shapes of all processes that a library compares before it gathers their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said, place_exceptions
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.ranks import MAX_RANK

_WORDS = "Cannot apply desired operation due to shape mismatches"
_MAX_SHOWN, _MAX_LINES = 4, 6


def make_gathered_shapes(view: LogView) -> Iterator[Case]:
    """Make the case of tensors that accelerate does not gather, as their shapes differ.

    How long a tensor is follows from the data of its process: no process is blamed for its own.
    """
    told = [event for event in view.list_signatures("accelerate.mismatch") if is_said(event)]
    raised = tuple(item for item in view.exceptions if _WORDS in item.message)
    if not (told or raised):
        return
    lines = [event for event in view.list_signatures("accelerate.shape") if is_said(event)]
    shapes = {
        rank: event.groups["dims"]
        for event in lines
        if (rank := int(event.groups["process"])) <= MAX_RANK
    }
    yield Case(
        code=codes.SHAPE_MISMATCH,
        summary="processes gave tensors of different shapes to an operation that needs one shape"
        + _show(shapes),
        tier=OWN,
        lines=(*told, *lines)[:_MAX_LINES],
        exceptions=raised,
        where=place_exceptions([item for item in raised if item.frames][:1]),
        time=find_time(told, raised),
        details={
            "group": "",
            "sequence": 0,
            "ops": {},
            "shapes": {
                str(rank): [int(part) for part in text.split(",")]
                for rank, text in sorted(shapes.items())
                if "[" not in text
            },
        },
        remedies=(
            "accelerator.pad_across_processes(tensor, dim=1, pad_index=PAD)   # before the gather",
        ),
        scope=view.ranks,
    )


def _show(shapes: Mapping[int, str]) -> str:
    """Show a process of each shape, the first few of them."""
    first: dict[str, int] = {}
    for rank, text in sorted(shapes.items()):
        first.setdefault(text, rank)
    shown = [f"process {rank}: [{text}]" for text, rank in first.items()][:_MAX_SHOWN]
    return f" ({', '.join(shown)})" if shown else ""
