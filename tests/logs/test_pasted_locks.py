"""Two threads of one rank that wait for each other's lock, as pasted stacks and comments tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.diagnose.algorithms.processes.noted_locks import is_same_lock, read_noted_locks
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import ThreadStack
from whystuck.parse.logs.owners.said_places import is_said_pod, list_pod_ranks

HEAD = "kubectl exec tts-{0}-0 -- py-spy dump --pid 1"
WAITS = [
    'Thread 1 (active): "MainThread"',
    "    all_reduce (torch/distributed/distributed_c10d.py:2501)",
    "    sync (tts/ddp.py:50)",
    "    <module> (train.py:9)",
]
MAIN = [
    'Thread 1 (idle): "MainThread"',
    "    {call} (threading.py:169)",
    "    snapshot (tts/ckpt.py:102){first}",
    "    on_end (tts/callbacks.py:54)",
    "    <module> (train.py:9)",
]
FLUSH = [
    'Thread 88 (idle): "meter-flush"',
    "    {call} (threading.py:169)",
    "    write_row (tts/ckpt.py:131)",
    "    flush (tts/meters.py:41){second}",
    "    run (threading.py:982)",
    "    _bootstrap_inner (threading.py:1045)",
]
PINS = [
    'Thread 91 (idle): "Thread-4 (_pin_memory_loop)"',
    "    wait (threading.py:331)",
    "    get (queue.py:180)",
    "    _bootstrap_inner (threading.py:1045)",
]
BUSY = [
    'Thread 92 (idle): "uploader"',
    "    read (ssl.py:1167)",
    "    upload (tts/store.py:12)",
    "    run (threading.py:982)",
]
# How people tell at two frames which lock is whose.
NOTES = {
    "waits": (
        "   # waits for self.meters._lock, holds self._io_lock (l.98)",
        "  # with self._lock: (l.39) -> saver.write_row() -> with self._io_lock",
    ),
    "holding": ("  # holding io_lock, wants meter_lock", "  # blocked on io_lock, has meter_lock"),
    "acquire": ("  # with io_lock: ... meter_lock.acquire()", "  # owns meter_lock, needs io_lock"),
}
SAID = [
    "2 pods (master = rank 0, worker-0 = rank 1)",
    "tts-worker-0 is rank 1, tts-master-0 is rank 0",
    "rank 1 runs in tts-worker-0",
    "pod/tts-worker-0 has rank 1",
]


def paste(
    *more: str, said: str = SAID[0], notes: tuple[str, str] = ("", ""), call: str = "__enter__"
) -> list[str]:
    first, second = notes
    own = [*MAIN, *FLUSH]
    own = [line.format(call=call, first=first, second=second) for line in own]
    return [said, HEAD.format("worker"), *own, *more, "", HEAD.format("master"), *WAITS]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("notes", NOTES)
def test_comments_tell_which_locks_cross(tmp_path: Path, notes: str, said: str) -> None:
    finding = first_of(say(tmp_path, *paste(*PINS, *BUSY, said=said, notes=NOTES[notes])))

    assert (finding.code, finding.culprits.ranks) == ("H115", [1])
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize("call", ["__enter__", "acquire"])
def test_two_threads_that_take_locks_cross_where_no_other_may_hold_them(
    tmp_path: Path, call: str
) -> None:
    finding = first_of(say(tmp_path, *paste(*PINS, call=call)))
    assert (finding.code, finding.culprits.ranks) == ("H115", [1])
    assert finding.confidence is Confidence.LIKELY

    finding = first_of(say(tmp_path, *paste(*PINS, *BUSY, call=call)))
    assert (finding.code, finding.confidence) == ("H115", Confidence.POSSIBLE)


def test_locks_of_two_other_threads_cross_as_well(tmp_path: Path) -> None:
    lines = paste(*PINS, notes=NOTES["waits"])
    at = lines.index('Thread 1 (idle): "MainThread"')
    joins = [
        lines[at],
        "    join (threading.py:1112)",
        "    close (tts/ckpt.py:9)",
        "    main (t.py:1)",
    ]
    lines[at] = 'Thread 87 (idle): "saver"'
    finding = first_of(say(tmp_path, *lines[:at], *joins, *lines[at:]))

    assert (finding.code, finding.culprits.ranks) == ("H115", [1])


def test_threads_that_wait_for_work_hold_no_lock(tmp_path: Path) -> None:
    assert first_of(say(tmp_path, *paste(*PINS, call="wait"))).code != "H115"


def test_pod_with_two_processes_has_no_one_rank(tmp_path: Path) -> None:
    other = [line.replace("Thread 1 ", "Thread 7 ") for line in WAITS]
    lines = [*paste(notes=NOTES["waits"]), HEAD.format("worker").replace("pid 1", "pid 7"), *other]

    assert 1 not in {rank for one in say(tmp_path, *lines).findings for rank in one.culprits.ranks}


def test_variables_that_py_spy_shows_are_no_frames(tmp_path: Path) -> None:
    shown = [
        "        Arguments:",
        "            self: <Saver at 0x7f21> (main.py:7)",
        "        Locals:",
        "            step: 38400",
        '            path: "(/ckpt/a.pt:3)"   # waits for self.meters._lock, holds self._io_lock',
    ]
    lines = paste(*PINS, *BUSY, notes=("", NOTES["waits"][1]))
    at = lines.index("    snapshot (tts/ckpt.py:102)") + 1
    finding = first_of(say(tmp_path, *lines[:at], *shown, *lines[at:]))

    assert (finding.code, finding.confidence) == ("H115", Confidence.LIKELY)
    assert [place.line for place in finding.where] == [102, 131]


@pytest.mark.parametrize(
    "note", ["holds no lock", "waits for rank 3", "does not hold a.lock", "# released io_lock", ""]
)
def test_comments_without_a_lock_name_none(note: str) -> None:
    noted = read_noted_locks(ThreadStack(1, "", (), notes=((1, note),)), 1)

    assert (noted.wanted, noted.held - {"no lock"}) == ("", frozenset())


def test_owner_of_a_lock_calls_it_by_a_shorter_name() -> None:
    assert is_same_lock("self.meters._lock", "self._lock")
    assert not is_same_lock("self._io_lock", "self._lock")


def test_ranks_of_pods_are_no_ranks_of_nodes_or_ranges() -> None:
    for text in ("node rank 0 = n12", "local rank 3 on n12", "ranks 0-3 on n12", "n12 not rank 3"):
        assert list_pod_ranks(text) == ()
    assert is_said_pod("worker-1", "tts-worker-1")
    assert not is_said_pod("worker-1", "tts-worker-11")
