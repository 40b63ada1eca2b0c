"""Small writes to an evidence folder whose file system hangs, and numbers of incidents there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.late import LateWriter


def _until(event: threading.Event) -> Callable[[], None]:
    def hang() -> None:
        event.wait()

    return hang


def test_order_is_kept_and_the_end_waits() -> None:
    late, done = LateWriter(), list[int]()
    for number in range(100):
        late.put(lambda number=number: done.append(number))  # type: ignore[misc]
    late.finish()
    assert done == list(range(100))


def test_answer_that_comes_too_late_is_undone() -> None:
    late, go, undone = LateWriter(), threading.Event(), list[int]()
    late.put(_until(go))
    assert late.ask(lambda: 1, undone.append) is None
    assert late.is_stuck
    go.set()
    late.finish()
    assert not late.is_stuck
    assert undone == []  # nobody had begun with it


def test_answer_that_is_begun_and_too_late_is_undone() -> None:
    late, go, undone = LateWriter(), threading.Event(), list[int]()
    assert late.ask(lambda: 1 if go.wait() else 2, undone.append) is None
    go.set()
    late.finish()
    assert undone == [1]


def test_fault_costs_its_piece_of_work_only() -> None:
    late, done = LateWriter(), list[int]()
    late.put(lambda: done.append(1 // 0))
    late.put(lambda: done.append(2))
    late.finish()
    assert done == [2]


def test_number_of_a_folder_that_hangs_is_claimed_later(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "ev", "n0")
    evidence.stage = tmp_path / "stage"
    evidence.late, go = LateWriter(), threading.Event()
    first = evidence.next_incident()
    evidence.late.put(_until(go))
    second, third = evidence.next_incident(), evidence.next_incident()
    assert [one.name for one in (first, second, third)] == ["000", "001", "002"]
    assert first.is_dir()
    assert not second.exists()
    assert evidence.hangs
    assert evidence.place_of(second) == tmp_path / "stage" / "incidents" / "001"
    second.mkdir()  # by another node
    go.set()
    evidence.late.finish()
    evidence.late = None
    assert evidence.claim(first) == first
    assert evidence.claim(second).name == "003"
    assert evidence.claim(third).name == "002"
    assert evidence.place_of(second) == evidence.claim(second)
    assert {one.name for one in first.parent.iterdir()} == {"000", "001", "002", "003"}
    evidence.drop(second)
    assert {one.name for one in first.parent.iterdir()} == {"000", "001", "002"}
