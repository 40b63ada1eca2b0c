"""What a report needs is imported while the job runs, by the watcher and by nobody else."""

from __future__ import annotations

import subprocess
import sys

HOLDS = """
import sys
{lines}
print(*sorted(one for one in sys.modules if one.startswith("whystuck.")))
"""
WAITS = """
from whystuck.launch.incidents.report_imports import ReportImports
imports = ReportImports()
{act}
"""


def modules_after(lines: str) -> set[str]:
    """Return the modules of ours that a fresh Python holds after some lines."""
    done = subprocess.run(
        [sys.executable, "-c", HOLDS.format(lines=lines)],
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_report_needs_nothing_more_than_was_imported() -> None:
    before = modules_after(WAITS.format(act="imports.look(has_ranks=True)"))
    makes_report = (
        "from whystuck.pipeline import *; from whystuck.evidence.model import Evidence\n"
        "report = diagnose_evidence(Evidence()); render_all(report)\n"
        "render_terminal(report, color=False)"
    )
    assert modules_after(makes_report) <= before


def test_report_without_traces_leaves_out_what_reads_traces() -> None:
    loaded = modules_after(WAITS.format(act="imports.look(has_ranks=True)"))
    assert not {one for one in loaded if one.startswith("whystuck.read.traces.reading")}


def test_nothing_is_imported_while_a_job_starts() -> None:
    assert "whystuck.pipeline" not in modules_after(WAITS.format(act="imports.look(has_ranks=0)"))


def test_front_holds_nothing_of_it() -> None:
    loaded = modules_after("import whystuck.launch.front")
    assert "whystuck.pipeline" not in loaded
