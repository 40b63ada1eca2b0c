"""Exceptions that no line signs, beside pasted stacks of the processes of their host."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

RAISED = [
    "Traceback (most recent call last):",
    '  File "/w/sft.py", line 344, in <module>',
    "    main()",
    '  File "/w/collate.py", line 47, in collate',
    '    turns = ex["text"].split()',
    "AttributeError: 'NoneType' object has no attribute 'split'",
]
ENDED = [
    'Thread 5102 (idle): "MainThread"',
    "    _wait_for_tstate_lock (threading.py:1116)",
    "    join (threading.py:1096)",
    "    {0}",
    'Thread 5140 (idle): "token-stats"',
    "    wait (threading.py:320)",
    "    get (queue.py:171)",
    "    drain (w/stats.py:29)",
    "    run (threading.py:953)",
]
LAST = ["_shutdown (threading.py:1567)", "_exit_function (multiprocessing/util.py:357)"]
GATHER = [
    'Thread 5101 (active): "MainThread"',
    "    all_gather (torch/distributed/distributed_c10d.py:2806)",
    "    step (w/sft.py:318)",
    "    <module> (w/sft.py:344)",
]
# How people say whose a stack is, and where they took it.
WAYS = {
    "comment": '$ ssh worker-1 "py-spy dump --pid {0}"   # RANK={1} from /proc/{0}/environ',
    "behind": '$ ssh worker-1 "py-spy dump --pid {0}"     # RANK={1}',
    "kubectl": "$ kubectl exec worker-1 -- py-spy dump --pid {0}  # global rank {1}",
    "local": "$ py-spy dump --pid {0}   # rank {1}",
    "that one": "$ py-spy dump --pid {0}   # that rank ({1}), half an hour later",
    "brackets": "py-spy dump -p {0}  # the one in question, rank ({1})",
}
OK = "{0}: [Rank 0] step=900, lr=[1.2e-05]"


def paste(way: str, host: str = "worker-1", last: str = LAST[0]) -> list[str]:
    ended = [line.format(last) for line in ENDED]
    log = [OK.format("worker-0"), *(f"{host}: {line}" for line in RAISED)]
    heads = [WAYS[way].format(5102, 6), WAYS[way].format(5101, 4)]
    return [*log, "so it is still there", heads[0], *ended, "", heads[1], *GATHER]


@pytest.mark.parametrize("last", LAST, ids=["shutdown", "atexit"])
@pytest.mark.parametrize("way", WAYS)
def test_exception_is_of_the_rank_that_does_not_end(tmp_path: Path, way: str, last: str) -> None:
    finding = first_of(say(tmp_path, *paste(way, last=last)))

    assert (finding.code, finding.culprits.ranks) == ("H120", [6])


@pytest.mark.parametrize(
    "note", ["the one that rank (6) waits for", "what that rank (6) talks to", "not that rank (6)"]
)
def test_comment_about_another_rank_names_nobody(tmp_path: Path, note: str) -> None:
    ended = [line.format(LAST[0]) for line in ENDED]
    report = say(tmp_path, *RAISED, f"$ py-spy dump --pid 5102   # {note}", *ended)

    assert not [one for one in report.findings if one.culprits.ranks]


def test_exception_of_another_host_is_not_of_the_rank_that_is_at_its_end(tmp_path: Path) -> None:
    report = say(tmp_path, *paste("comment", host="worker-3"))

    assert not [one for one in report.findings if one.code == "H120" or one.culprits.ranks]


def test_two_exceptions_of_a_host_may_be_of_any_of_its_ranks(tmp_path: Path) -> None:
    more = [f"worker-1: {line}" for line in (*RAISED[:-1], "KeyError: 'text'")]
    report = say(tmp_path, *more, *paste("comment"))

    assert not [one for one in report.findings if one.code == "H120"]


def test_exception_that_was_caught_is_of_no_rank_that_is_at_its_end(tmp_path: Path) -> None:
    lines = [line for line in paste("comment") if "<module>\n" not in f"{line}\n"]
    report = say(tmp_path, *lines)

    assert not [one for one in report.findings if one.code == "H120"]


def test_comment_behind_one_command_does_not_sign_the_whole_log(tmp_path: Path) -> None:
    lines = [*RAISED, "$ py-spy dump --pid 5101   # RANK=4", *GATHER]
    report = say(tmp_path, *lines)

    assert 4 not in first_of(report).culprits.ranks


LABELS = ["gpu-b1: ", "train-worker-1 | ", "[trainer-worker-1 pytorch] ", "(node 1) "]


@pytest.mark.parametrize("label", LABELS)
def test_word_before_all_lines_of_a_traceback_is_no_part_of_them(
    tmp_path: Path, label: str
) -> None:
    prose = [f"and this is line {number} of what i think of it" for number in range(20)]
    finding = first_of(say(tmp_path, *prose, *(label + line for line in RAISED)))

    assert (finding.code, finding.where[0].line) == ("C204", 47)
