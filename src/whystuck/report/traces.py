"""Where the time of traced steps went, in the same words for every format."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.evidence.traces.report import TraceBar, TraceOverview, TraceShare
from whystuck.safe_text.escaping import show_line

# Parts smaller than this are left out of the line of text.
_MIN_SHARE = 0.005
# A rank is named beside the one in the middle where it has this much more of a part.
_APART = 0.05
# Shares from here on are written without decimals.
_WHOLE = 0.01
_MS_PER_S = 1000.0

PARTS = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "exposed_memory": "exposed copies",
    "data_wait": "waits for data",
    "sync": "idle in a sync",
    "host": "idle, host in ops",
    "launch": "idle, host launches",
    "idle": "idle otherwise",
}
HINT = (
    "`--tables DIR` writes all figures · `whystuck trace merge` joins the traces for Perfetto "
    "· `whystuck trace whatif` tells what a fix gains"
)


@dataclass(frozen=True)
class Segment:
    """A part of a bar; ``x`` and ``width`` are percent of it, ``kind`` is the name of the part."""

    kind: str
    x: str
    width: str
    title: str


@dataclass(frozen=True)
class BarWords:
    """The step of one rank, or of one that stands for many."""

    label: str
    step: str
    title: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class TraceWords:
    """The traces in words: two lines, a table of parts and a bar for each rank."""

    coverage: str
    split: str
    rows: tuple[tuple[str, str, str], ...]
    legend: tuple[tuple[str, str], ...]
    bars: tuple[BarWords, ...]


def lay_out_traces(overview: TraceOverview) -> TraceWords | None:
    """Put the traces of a report into words.

    Args:
        overview: The figures of a report.

    Returns:
        The words; None when no trace was read.
    """
    if not overview.files:
        return None
    shown = [part for part in overview.split if part.most >= _MIN_SHARE]
    names = [part.name for part in overview.split]
    return TraceWords(
        coverage=describe_coverage(overview),
        split=_describe_split(overview, shown),
        rows=tuple(_lay_out_part(part) for part in shown),
        legend=tuple((_kind(part.name), _name_part(part.name)) for part in shown),
        bars=tuple(_lay_out_bar(bar, names) for bar in overview.bars),
    )


def describe_coverage(overview: TraceOverview) -> str:
    """Say what the traces cover, e.g. ``traces of cuda devices, 3 steps (7-9) of 612 ms``."""
    vendor = "" if overview.vendor == "cpu" else f"{overview.vendor} "
    device = f" of {vendor}devices" if overview.has_device else " without a device"
    text = f"traces{device}"
    if overview.steps:
        plural = "" if overview.steps == 1 else "s"
        first, last = overview.first_step, overview.last_step
        numbers = f" ({first})" if first == last else f" ({first}-{last})"
        # Those of optimizers have no numbers in the job.
        kind, numbers = ("", numbers) if first >= 0 else ("optimizer ", "")
        text += f", {overview.steps} {kind}step{plural}{numbers} of {_format_ms(overview.step_ms)}"
    elif overview.split:
        whole, work = _format_ms(overview.step_ms), _format_ms(overview.device_ms)
        text += f", no steps, {whole}"
        if overview.device_ms > 0 and work != whole:
            text += f" ({work} from the first work of the device to its last)"
    return show_line(text)


def _describe_split(overview: TraceOverview, shown: list[TraceShare]) -> str:
    if not shown:
        return ""
    parts = []
    for part in sorted(shown, key=lambda item: -item.share):
        text = f"{_name_part(part.name)} {_percent(part.share)}"
        if part.most - part.share >= _APART and part.rank >= 0:
            text += f" (rank {part.rank} {_percent(part.most)})"
        parts.append(text)
    what = "step" if overview.steps else "traced time"
    return show_line(f"{what}: {' · '.join(parts)}")


def _lay_out_part(part: TraceShare) -> tuple[str, str, str]:
    most = _percent(part.most) + (f" (rank {part.rank})" if part.rank >= 0 else "")
    return _name_part(part.name), _percent(part.share), most


def _lay_out_bar(bar: TraceBar, names: list[str]) -> BarWords:
    segments, begin = [], 0.0
    for name, share in zip(names, bar.shares, strict=False):
        # Shares are rounded: the last one must not stick out.
        width = min(max(share, 0.0), 1.0 - begin)
        if width > 0:
            title = f"{_name_part(name)} {share:.1%}"
            segments.append(Segment(_kind(name), f"{begin:.2%}", f"{width:.2%}", title))
        begin += width
    said = ", ".join(segment.title for segment in segments)
    label = show_line(bar.label)
    return BarWords(
        label=label,
        step=_format_ms(bar.step_ms),
        title=show_line(f"{label}: {said}"),
        segments=tuple(segments),
    )


def _name_part(name: str) -> str:
    return PARTS.get(name) or show_line(name)


def _kind(name: str) -> str:
    """Return the name of a part that the style sheet knows."""
    return name if name in PARTS else "idle"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= _WHOLE or not share else f"{share:.1%}"


def _format_ms(value: float) -> str:
    return f"{value / _MS_PER_S:.3g} s" if value >= _MS_PER_S else f"{value:.3g} ms"
