"""Tracebacks of processes that somebody interrupted while they waited for the file of a lock."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Severity

SITE = "/opt/v/lib/python3.11/site-packages"
BATON = [
    f'  File "{SITE}/torch/utils/cpp_extension.py", line 1822, in _jit_compile',
    "    baton.wait()",
    f'  File "{SITE}/torch/utils/file_baton.py", line 43, in wait',
    "    time.sleep(self.wait_seconds)",
]
FILELOCK = [
    f'  File "{SITE}/datasets/builder.py", line 867, in download_and_prepare',
    "    with FileLock(lock_path):",
    f'  File "{SITE}/filelock/_api.py", line 344, in acquire',
    "    time.sleep(poll_interval)",
    "    ^^^^^^^^^^^^^^^^^^^^^^^^^",
]
HEAD = ["Traceback (most recent call last):", '  File "/w/train.py", line 12, in <module>']
LAUNCHER = [
    "Traceback (most recent call last):",
    f'  File "{SITE}/torch/distributed/run.py", line 892, in main',
    "    run(args)",
    "KeyboardInterrupt",
]
BUILDING = [
    f'  File "{SITE}/torch/utils/cpp_extension.py", line 2104, in _run_ninja_build',
    "    subprocess.run(command)",
    '  File "/usr/lib/python3.11/subprocess.py", line 1209, in communicate',
    "    sts = self.wait(timeout=self._remaining_time(endtime))",
]


@pytest.mark.parametrize("frames", [BATON, FILELOCK], ids=["baton", "filelock"])
@pytest.mark.parametrize("head", [[], HEAD], ids=["cut", "whole"])
@pytest.mark.parametrize("prefix", ["", "[rank2]: ", "> "])
def test_wait_for_the_file_of_a_lock_is_told(
    tmp_path: Path, frames: list[str], head: list[str], prefix: str
) -> None:
    lines = [prefix + line for line in (*head, *frames, "KeyboardInterrupt")]
    finding = first_of(say(tmp_path, "no error, GPUs idle. ^C gives", *lines, *LAUNCHER))

    assert (finding.code, finding.culprits.ranks) == ("H115", [])
    assert finding.confidence == "likely"
    assert finding.details["lock_file"]


def test_rank_that_builds_may_hold_the_lock(tmp_path: Path) -> None:
    waits = [f"[rank1]: {line}" for line in (*HEAD, *BATON, "KeyboardInterrupt")]
    builds = [f"[rank0]: {line}" for line in (*HEAD, *BUILDING, "KeyboardInterrupt")]
    finding = first_of(say(tmp_path, *waits, *builds))

    assert (finding.code, finding.confidence) == ("H115", "possible")


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*HEAD, *BUILDING, "KeyboardInterrupt"], id="at work"),
        pytest.param([*HEAD, *BATON, "filelock.Timeout: lock is held"], id="other end"),
        pytest.param([*HEAD, *BATON, *BUILDING, "KeyboardInterrupt"], id="further in"),
        pytest.param(
            ["reads file_baton.py and waits", *HEAD, "    x = 1", "KeyboardInterrupt"], id="words"
        ),
    ],
)
def test_other_interrupts_tell_of_no_lock(tmp_path: Path, lines: list[str]) -> None:
    found = [one for one in say(tmp_path, *lines).findings if one.severity is not Severity.NOTE]

    assert all(one.code != "H115" for one in found)
