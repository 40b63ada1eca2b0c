"""Lines of JSON: whole, bounded, and no trouble when the disk is full."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from tests.agent.metrics.parts import one

from whystuck.agent.metrics.families import counter
from whystuck.agent.metrics.sinks.jsonlines import JsonLinesSink
from whystuck.evidence.errors import StartError
from whystuck.evidence.nodes.metrics import Sample

STEPS = counter("test_steps_total", "Steps made.", "job", "rank")


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_round_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink("n1", path, every_s=0, labels={"cluster": "c"})

    sink.write([one("a", 0.5), one("b", 1), Sample(family=STEPS, value=7, labels=("j", ""))])
    sink.write([one("a", 1)])

    first, second = lines_of(path)
    assert first["node"] == "n1"
    assert first["cluster"] == "c"
    assert first["metrics"] == {
        "whystuck_test_ratio": [{"part": "a", "value": 0.5}, {"part": "b", "value": 1}],
        "whystuck_test_steps_total": [{"job": "j", "value": 7}],
    }
    assert second["time_ns"] > first["time_ns"]  # type: ignore[operator]
    assert path.stat().st_mode & 0o777 == 0o600


def test_rounds_in_between_are_left_out(tmp_path: Path) -> None:
    sink = JsonLinesSink("n1", tmp_path / "m", every_s=3600)

    for _ in range(5):
        sink.write([one("a")])

    assert len(lines_of(tmp_path / "m")) == 1


def test_a_round_of_nothing_is_no_line(tmp_path: Path) -> None:
    sink = JsonLinesSink("n1", tmp_path / "m", every_s=0)

    sink.write([])

    assert lines_of(tmp_path / "m") == []


def test_old_lines_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "m"
    sink = JsonLinesSink("n1", path, every_s=0, max_bytes=500, keep=2)

    for number in range(30):
        sink.write([one(str(number))])

    assert sorted(found.name for found in tmp_path.iterdir()) == ["m", "m.1", "m.2"]
    assert all(found.stat().st_size <= 500 for found in tmp_path.iterdir())
    order = [*lines_of(tmp_path / "m.2"), *lines_of(tmp_path / "m.1"), *lines_of(path)]
    parts = [line["metrics"]["whystuck_test_ratio"][0]["part"] for line in order]  # type: ignore[index]
    assert parts == [str(number) for number in range(30 - len(parts), 30)]


def test_none_can_be_kept(tmp_path: Path) -> None:
    sink = JsonLinesSink("n1", tmp_path / "m", every_s=0, max_bytes=300, keep=0)

    for number in range(30):
        sink.write([one(str(number))])

    assert [found.name for found in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m").stat().st_size <= 300


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "m"
    sink = JsonLinesSink("n1", path, every_s=0)
    sink.write([one("a")])
    path.rename(tmp_path / "moved")

    sink.write([one("b")])

    assert len(lines_of(path)) == 1


def test_a_line_that_is_too_long_is_told(tmp_path: Path) -> None:
    sink = JsonLinesSink("n1", tmp_path / "m", every_s=0, max_bytes=300)

    with pytest.raises(OSError, match="larger than the file may be"):
        sink.write([one(str(number)) for number in range(100)])
    assert lines_of(tmp_path / "m") == []


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    sink = JsonLinesSink("n1", path, every_s=0)
    sink.write([one("a")])
    real, left = os.write, [50]

    def write(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(descriptor, data[: left[0]])
        left[0] -= done
        return done

    with monkeypatch.context() as patch:
        patch.setattr("whystuck.agent.metrics.sinks.jsonlines.os.write", write)
        with pytest.raises(OSError, match="No space"):
            sink.write([one("b")])
    assert len(lines_of(path)) == 1

    sink.write([one("c")])
    assert len(lines_of(path)) == 2


def test_a_really_full_disk_is_told() -> None:
    # /dev/full is no place of ours, but says what a full disk says
    sink = JsonLinesSink("n1", Path("/dev/full"), every_s=0)

    with pytest.raises(OSError, match="No space"):
        sink.write([one("a")])


@pytest.mark.parametrize("name", ["missing/m", "folder", "link", "pipe"])
def test_a_place_that_is_no_file_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(StartError) as caught:
        JsonLinesSink("n1", tmp_path / name)

    assert "cannot be written" in caught.value.message
