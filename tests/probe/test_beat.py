"""What a beat tells of a rank whose flight recorder is off."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystuck.collect.beats import BeatSlot, read_beat
from whystuck.probe import files, progress
from whystuck.probe.beat import Beat


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHYSTUCK_JOB_DIR", str(tmp_path))
    monkeypatch.setattr(progress, "COUNTS", progress.Counts())
    return tmp_path


def write_beats(*recorded: int) -> list[BeatSlot]:
    beat, found = Beat(), []
    for one in recorded:
        progress.COUNTS.recorded = one
        beat.write(0, 2)
        slot = read_beat(Path(files.path_of("beat")))
        assert slot is not None
        found.append(slot)
    beat.remove()
    return found


@pytest.mark.usefixtures("folder")
def test_ops_of_the_op_log_count_where_the_recorder_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "0")
    before, first, second, same = write_beats(0, 5, 6, 6)

    assert (before.has_communicated, first.has_communicated) == (False, True)
    assert first.progress != second.progress
    assert second.progress == same.progress


@pytest.mark.usefixtures("folder")
def test_rank_moves_where_nothing_counts_its_ops_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    _, first, second = write_beats(5, -1, -1)

    assert first.progress != second.progress


@pytest.mark.usefixtures("folder")
def test_ops_of_the_op_log_do_not_count_beside_a_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")
    first, second = write_beats(5, -1)

    assert first.progress == second.progress
    assert not first.has_communicated
