"""A pod whose process raised an exception and is still there, as a stack taken in it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Finding, Severity

# What stands before each line of a pod's log.
PREFIXES = {
    "kubectl": "[pod/seg-ft-{0}/pytorch] ",
    "stern": "seg-ft-{0} pytorch ",
    "bar": "seg-ft-{0} | ",
}
# How people say which rank a pod is.
SAID = {
    "rule": "(master-0 = rank 0, worker-N = rank N+1)",
    "rule in words": "rank 0 is the master, worker-N is rank N+1",
    "example": "worker-2 is rank 3",
    "own": "rank 3 runs in seg-ft-worker-2",
}
ERROR = [
    "Traceback (most recent call last):",
    '  File "/workspace/train_seg.py", line 233, in <module>',
    "    run(cfg)",
    '  File "/workspace/data/tiles.py", line 71, in __iter__',
    '    mask = Image.open(io.BytesIO(rec["mask"]))',
    "ValueError: cannot identify image file",
]
WATCHDOG = (
    "[rank{0}]:[E221 04:48:53.601882930 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=124933, OpType=ALLREDUCE, NumelIn=8392704, "
    "NumelOut=8392704, Timeout(ms)=1800000) ran for 1800082 milliseconds before timing out."
)
SHOWN = {
    "kubectl": "$ kubectl exec -n vision seg-ft-worker-2 -- py-spy dump --pid 1",
    "container": "$ kubectl exec seg-ft-worker-2 -n vision -c pytorch -- py-spy dump --pid 1",
    "oc": "$ oc exec pod/seg-ft-worker-2 -- py-spy dump --pid 1",
}
ENDS = {
    "threads": ["    _shutdown (threading.py:1567)"],
    "join": [
        "    _wait_for_tstate_lock (threading.py:1116)",
        "    join (threading.py:1096)",
        "    _shutdown (threading.py:1560)",
    ],
    "pool": [
        "    join (threading.py:1096)",
        "    _python_exit (concurrent/futures/thread.py:31)",
        "    _shutdown (threading.py:1560)",
    ],
}


def paste(prefix: str, said: str, shown: str, end: list[str]) -> list[str]:
    lines = [f"{prefix.format('worker-2')}{one}" for one in ERROR]
    lines += [f"{prefix.format(f'worker-{one - 1}')}{WATCHDOG.format(one)}" for one in (1, 2)]
    threads = ['Thread 61 (idle): "uploader"', "    _drain (tools/uploader.py:40)"]
    stack = ["Process 1: python train_seg.py", "Python v3.10.12 (/usr/bin/python3.10)", ""]
    return [said, "", *lines, "", shown, *stack, 'Thread 1 (idle): "MainThread"', *end, *threads]


def find_errors(folder: Path, lines: list[str]) -> list[Finding]:
    return [one for one in say(folder, *lines).findings if one.severity is not Severity.NOTE]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("said", SAID)
def test_rank_is_told_by_its_pod(tmp_path: Path, prefix: str, said: str) -> None:
    lines = paste(PREFIXES[prefix], SAID[said], SHOWN["kubectl"], ENDS["threads"])
    first = find_errors(tmp_path, lines)[0]

    assert (first.name, first.culprits.ranks) == ("exception-hanging", [3])
    assert first.victims.ranks == "1-2"


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("end", ENDS)
def test_process_is_at_its_end(tmp_path: Path, shown: str, end: str) -> None:
    lines = paste(PREFIXES["kubectl"], SAID["rule"], SHOWN[shown], ENDS[end])
    first = find_errors(tmp_path, lines)[0]

    assert (first.name, first.culprits.ranks) == ("exception-hanging", [3])


def test_pod_of_which_nobody_tells_the_rank_has_none(tmp_path: Path) -> None:
    lines = paste(PREFIXES["kubectl"], "", SHOWN["kubectl"], ENDS["threads"])

    assert not find_errors(tmp_path, lines)[0].culprits.ranks


def test_rank_that_still_runs_has_not_ended(tmp_path: Path) -> None:
    end = ["    forward (model.py:12)", "    <module> (train_seg.py:233)"]
    lines = paste(PREFIXES["kubectl"], SAID["rule"], SHOWN["kubectl"], end)

    assert "exception-hanging" not in {one.name for one in find_errors(tmp_path, lines)}
