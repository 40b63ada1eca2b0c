"""The answers to what-if questions as text, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from whystuck.evidence.finding import Gap
from whystuck.evidence.ranks import format_ranks
from whystuck.evidence.table import Table
from whystuck.evidence.traces.tables import TraceSummary
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.values import encode_json

ANSWERS, REPLAY, PATH = "whatif", "whatif_replay", "job_critical_summary"
_NAME_CHARS = 60
_MOST_ROWS = 15
_ALL = 1.0
# What gains less is not worth a line.
_LEAST = 0.0005
# A replay that is this far off says little.
_POOR = 0.02


def render_whatif_json(summary: TraceSummary, gaps: Sequence[Gap]) -> str:
    """Render the answers as JSON.

    Args:
        summary: The tables of a job, with those of what-if questions.
        gaps: What could not be read.

    Returns:
        One object: ``replay``, ``levers`` and ``gaps``.
    """
    replay = _rows(summary.get(REPLAY))
    levers = _rows(summary.get(ANSWERS))
    for row in levers:
        row["ranks"] = [int(rank) for rank in row["ranks"].split(",") if rank]
    made = {
        "schema_version": 1,
        "replay": replay[0] if replay else {},
        "levers": levers,
        "critical_path": _rows(summary.get(PATH)),
        "gaps": [{"rank": gap.rank, "what": gap.what, "reason": gap.reason} for gap in gaps],
    }
    return encode_json(made).decode()


def render_whatif_text(summary: TraceSummary, gaps: Sequence[Gap]) -> str:
    """Render the answers as text.

    Args:
        summary: The tables of a job, with those of what-if questions.
        gaps: What could not be read.

    Returns:
        Lines: how well the replay fits, the path in one line, and the levers by their gain.
    """
    return "\n".join(_render(summary, gaps)) + "\n"


def _rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows()]


def _render(summary: TraceSummary, gaps: Sequence[Gap]) -> Iterator[str]:
    (replay,) = _rows(summary.get(REPLAY))
    yield from _describe_replay(replay)
    yield from _describe_path(_rows(summary.get(PATH)))
    yield ""
    yield from _list_levers(_rows(summary.get(ANSWERS)), replay)
    for gap in gaps:
        rank = "" if gap.rank is None else f"rank {gap.rank}: "
        yield show_line(f"note: {rank}{gap.reason}")


def _describe_replay(replay: dict[str, Any]) -> Iterator[str]:
    ranks, met = replay["ranks"], replay["collectives"]
    joined = f", joined at {met} collective{'s' * (met != 1)}" if ranks > 1 else ""
    yield f"{ranks} rank{'s' * (ranks != 1)}{joined} · {_format(replay['measured_ns'])}" + (
        f", {replay['steps']} step{'s' * (replay['steps'] != 1)}" if replay["steps"] > 0 else ""
    )
    error = replay["error"]
    yield f"replay without any change: {_format(replay['replayed_ns'])} ({error:+.3%})"
    if abs(error) > _POOR:
        yield "note: the replay is off by so much that the gains below are rough"
    if replay["broken"]:
        yield f"note: {replay['broken']} collectives are in another order on some ranks"
    if ranks == 1:
        yield "note: of one rank, time in collectives holds the waits for others"
    elif not met:
        yield "note: no collectives could be matched, so that ranks are replayed on their own"


def _describe_path(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Tell the kinds on the critical path, and the ranks when there are several."""
    if not rows:
        return
    for name in ("kind", "rank"):
        shares: dict[Any, float] = {}
        for row in rows:
            shares[row[name]] = shares.get(row[name], 0.0) + row["share"]
        if name == "rank" and len(shares) < 2:  # noqa: PLR2004 - one rank is no news
            return
        most = sorted(shares.items(), key=lambda item: -item[1])[:6]
        what = "rank " if name == "rank" else ""
        parts = [f"{what}{key} {share:.1%}" for key, share in most]
        yield ("critical path: " if name == "kind" else "  on ") + " · ".join(parts).replace(
            "_", " "
        )


def _list_levers(rows: list[dict[str, Any]], replay: dict[str, Any]) -> Iterator[str]:
    """List a line a lever, with the gain at each share."""
    by_lever: dict[tuple[str, str], dict[float, dict[str, Any]]] = {}
    for row in rows:
        by_lever.setdefault((row["lever"], row["ranks"]), {})[row["faster"]] = row
    shares = sorted({row["faster"] for row in rows})
    useful = [
        (key, gains)
        for key, gains in by_lever.items()
        if any(row["gain_share"] >= _LEAST for row in gains.values()) or len(by_lever) == 1
    ]
    if not useful:
        yield "no lever would make it faster by 0.05 % or more"
        return
    titles = ["without it" if share == _ALL else f"{share:.0%} faster" for share in shares]
    yield "  " + "".join(f"{title:>22}" for title in titles) + "   what"
    for (lever, ranks), gains in useful[:_MOST_ROWS]:
        cells = [_cell(gains.get(share), replay["steps"]) for share in shares]
        yield "  " + "".join(f"{cell:>22}" for cell in cells) + f"   {_name(lever, ranks)}"
    hidden = len(by_lever) - min(len(useful), _MOST_ROWS)
    if hidden:
        yield f"  ({hidden} more gain less, or nothing: `--format json` lists them)"


def _name(lever: str, ranks: str) -> str:
    name = show_line(lever, _NAME_CHARS)
    if not ranks:
        return name
    where = f"rank {format_ranks([int(one) for one in ranks.split(',')])}"
    return f"{where} {name}" if name.startswith("as ") else f"{where}: {name}"


def _cell(row: dict[str, Any] | None, steps: int) -> str:
    if row is None:
        return ""
    gain = row["gain_ns"]
    each = f"{_format(gain / steps)}/step" if steps > 1 else _format(gain)
    return f"{-row['gain_share']:.1%} {each}"


def _format(ns: float) -> str:
    for size, unit in ((1e9, "s"), (1e6, "ms")):
        if abs(ns) >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns / 1e3:.3g} µs"
