"""Checks a SPEC before a job gets it, with the very code that reads it there."""

from __future__ import annotations

import runpy
from pathlib import Path

from whystuck.evidence.errors import UsageError

_READER = Path(__file__).parents[2] / "probe" / "inspect" / "spec.py"


def check_inspect_spec(text: str) -> None:
    """Raise UsageError when a SPEC cannot be understood; ``off`` always can.

    The file is run by its path: it belongs to the probe, which is not imported here.
    """
    problem = "" if text == "off" else str(runpy.run_path(str(_READER))["check_spec"](text))
    if problem:
        raise UsageError(
            f"the SPEC {text[:80]!r} is not understood: {problem}",
            hint="for example `finite,weights:every=50`; the guide to inspection has them all",
        )
