"""Tells when ``whystuck fr`` is asked for groups or ranks that the dumps do not have."""

from __future__ import annotations

from collections.abc import Sequence

from whystuck.diagnose.summaries.ops_view import View
from whystuck.evidence.errors import UsageError
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import GroupName
from whystuck.evidence.ranks import name_ranks

_MAX_NAMES = 8


def check_view(evidence: Evidence, view: View) -> list[str]:
    """Compare what is asked for with what was read.

    Args:
        evidence: What was read.
        view: What is asked for.

    Returns:
        What of it is not there, one line each.

    Raises:
        UsageError: None of the groups, or none of the ranks, is there.
    """
    table = evidence.collectives
    if not len(table):
        return []
    notes = []
    words = [word for word in view.groups if not _is_group(word, table.groups)]
    if words:
        text = "no group has the name or description " + " or ".join(f"`{word}`" for word in words)
        if len(words) == len(view.groups):
            raise UsageError(text, hint=name_groups(table.groups))
        notes.append(text)
    with_dump = {dump.rank for dump in table.dumps}
    without = set(view.ranks) - with_dump
    if without:
        text = f"no dump of {name_ranks(without)} was read"
        if without == set(view.ranks):
            raise UsageError(text, hint=f"there are dumps of {name_ranks(with_dump)}")
        notes.append(text)
    return notes


def name_groups(groups: Sequence[GroupName]) -> str:
    """Say which groups there are, for a hint."""
    known = sorted(
        {f"{group.name} ({group.desc})" if group.desc else group.name for group in groups}
    )
    more = ", …" if len(known) > _MAX_NAMES else ""
    return f"the groups are {', '.join(known[:_MAX_NAMES])}{more}"


def describe_gaps(evidence: Evidence) -> list[str]:
    """Say what could not be read, one line for all ranks of which the same is to be said."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for gap in evidence.gaps:
        told = ranks.setdefault((gap.what, gap.reason), [])
        if gap.rank is not None:
            told.append(gap.rank)
    return [
        f"gap: {f'{name_ranks(told)}: ' if told else ''}{what}: {reason}"
        for (what, reason), told in ranks.items()
    ]


def _is_group(word: str, groups: Sequence[GroupName]) -> bool:
    return any(word in (group.name, group.desc) for group in groups)
