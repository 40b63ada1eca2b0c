"""Stacks of py-spy whose line of the thread is cut off: the line of the process stands above."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

MAIN = [
    "    select (selectors.py:416)",
    "    _try_get_data (torch/utils/data/dataloader.py:1243)",
    "    _next_data (torch/utils/data/dataloader.py:1410)",
]
WORKER = [
    "    futex_wait (libc.so.6)",
    "    pthread_cond_wait (libc.so.6)",
    "    tf::Pool::join (libvideo_core.so.2)",
    "    read_clip (clips/video.py:58)",
    "    __getitem__ (clips/data.py:40)",
    "    fetch (torch/utils/data/_utils/fetch.py:52)",
]
COMMANDS = [
    "Process 7100: /opt/py/bin/python -u fit.py{0}",
    "Process 7100: python fit.py --cfg a.yaml{0}",
]
NOTES = ["", "  (rank 2)", "  (main, rank 2)", "  # main process, rank 2"]
THREAD = 'Thread {0} (idle): "MainThread"'


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize("head", [[], [THREAD.format(7211)]], ids=["bare", "thread"])
def test_worker_and_its_rank_without_the_lines_of_threads(
    tmp_path: Path, command: str, note: str, head: list[str]
) -> None:
    lines = [command.format(note), *MAIN, "Process 7211: pt_data_worker", *head, *WORKER]
    finding = first_of(say(tmp_path, *lines))

    assert finding.code == "H112"
    assert finding.details["worker_pid"] == 7211
    assert finding.culprits.ranks == ([2] if note else [])


def test_worker_that_waits_for_an_index_is_not_stuck(tmp_path: Path) -> None:
    idle = [
        "    select (selectors.py:416)",
        "    get (multiprocessing/queues.py:113)",
        "    _worker_loop (torch/utils/data/_utils/worker.py:275)",
    ]
    lines = [COMMANDS[0].format(""), *MAIN, "Process 7211: pt_data_worker", *idle]

    assert all(finding.code != "H112" for finding in say(tmp_path, *lines).findings)


def test_words_below_the_line_of_a_process_are_no_stack(tmp_path: Path) -> None:
    lines = [COMMANDS[0].format(""), "  loss (train/all:12) went up", "  see (torch/x) for more"]

    assert list(say(tmp_path, *lines).findings) == []
