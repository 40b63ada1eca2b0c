"""Diagnoses kept evidence again: the morning after, the answer must be that of the night."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whystuck.evidence.errors import WhystuckError
from whystuck.pipeline import diagnose_paths
from whystuck.report.json import render_json

# Code, confidence and ranks of the first finding, with the verdict.
Answer = tuple[Any, ...]


def list_changed_answers(evidence: Path, places: Iterable[Path]) -> list[str]:
    """Compare what kept evidence says now with what the reports of its incidents say.

    Args:
        evidence: The evidence folder of one run.
        places: Other paths by which a user may ask for that run.

    Returns:
        A sentence for each path that gives another answer.
    """
    changed = []
    told = {path.parent: _read_answer(path) for path in evidence.glob("incidents/*/report.json")}
    for incident, answer in sorted(told.items()):
        found = _diagnose(incident)
        if found != answer:
            changed.append(f"{incident.name} again: {found} in place of {answer}")
    for path in places:
        found = _diagnose(path)
        if found not in told.values():
            changed.append(f"{path.name}/ says {found}")
    return changed


def _diagnose(path: Path) -> Answer:
    try:
        return _make_answer(json.loads(render_json(diagnose_paths([path]))))
    except WhystuckError as error:
        return (error.message,)


def _read_answer(path: Path) -> Answer:
    return _make_answer(json.loads(path.read_bytes()))


def _make_answer(report: dict[str, Any]) -> Answer:
    first = next(iter(report["findings"]), None)
    if first is None:
        return (report["verdict"],)
    ranks = tuple(first["culprits"]["ranks"])
    return report["verdict"], first["code"], first["confidence"], ranks
