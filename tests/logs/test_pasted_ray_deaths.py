"""Actors of Ray that died: Ray lists possible reasons, and knows none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Confidence, Verdict

TRACE = ["Traceback (most recent call last):", '  File "/w/launch.py", line 31, in <module>']
DIED = {
    "actor": [*TRACE, "ray.exceptions.ActorDiedError: The actor died unexpectedly."],
    "older": [*TRACE, "ray.exceptions.RayActorError: The actor died unexpectedly before finishing"],
    "task": [*TRACE, "ray.exceptions.WorkerCrashedError: The worker died unexpectedly."],
    "raylet": [
        "(raylet) A worker died or was killed while executing a task by an unexpected error."
    ],
}
REASONS = (
    "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a "
    "connection error code 2. End of file. There are some potential root causes. "
    "(1) The process is killed by SIGKILL by OOM killer due to high memory usage."
)
CLOSED = (
    "[rank{0}]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [h2]:9"
)
KILLED = (
    "[Tue May  6 10:11:12 2025] Out of memory: Killed process 4120 (ray::_Inner) total-vm:1kB, "
    "anon-rss:1kB"
)


@pytest.mark.parametrize("form", DIED)
@pytest.mark.parametrize("more", [[], [REASONS]], ids=["alone", "reasons"])
def test_why_a_worker_of_ray_died_is_open(tmp_path: Path, form: str, more: list[str]) -> None:
    report = say(tmp_path, *DIED[form], *more)

    assert report.verdict is Verdict.INCONCLUSIVE
    told = next(one for one in report.findings if one.code == "C209")
    assert (told.confidence, told.culprits.ranks) == (Confidence.POSSIBLE, [])


def test_ranks_that_lost_a_peer_are_still_told(tmp_path: Path) -> None:
    lines = [CLOSED.format(rank) for rank in (0, 3)]
    told = say(tmp_path, *lines, *DIED["actor"]).findings[0]

    assert (told.code, told.confidence, told.victims.ranks) == ("C209", Confidence.LIKELY, "0,3")


def test_kernel_that_killed_a_worker_tells_why(tmp_path: Path) -> None:
    assert say(tmp_path, KILLED, *DIED["actor"]).findings[0].code == "C202"
