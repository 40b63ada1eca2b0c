"""What a run says and notes of a job acts on no terminal, and shows no secret."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.launch.running import run_whystuck
from tests.safe_text.test_escaping import is_visible

SCRIPT = r"""
raise ValueError("\u202e \x9b31m \u2066 \ue000 token=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH")
"""


def test_what_a_run_says_of_a_hostile_job_acts_on_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    evidence = tmp_path / "evidence"

    done = run_whystuck(
        *("run", "--no-agent", "--evidence", evidence, "--"),
        *(sys.executable, script, "\x1b[2J"),
        cwd=tmp_path,
    )

    assert done.returncode == 1
    # What the job says itself comes as it is.
    said = done.stderr.decode()
    report = said[said.index("error[C204]") :]
    notes = (evidence / "fault.log").read_text()
    for text in (report, notes):
        assert "\\u202e" in text
        assert is_visible(text.replace("\n", ""))
        assert "hf_abc" not in text
    assert "whystuck: the job ended with code 1; C204: " in report
    assert "python-exception" in notes
