"""The log of an agent stays small, readable, and never fails its writer."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from whystuck.agent.log import AgentLog
from whystuck.evidence.errors import UsageError

LOGGER = logging.getLogger("whystuck.agent.test")


@pytest.fixture
def log() -> Iterator[AgentLog]:
    made = AgentLog()
    yield made
    made.close()


def test_lines_go_to_stderr_first(capsys: pytest.CaptureFixture[str]) -> None:
    log = AgentLog()
    LOGGER.info("Registered process (%s) for job %d.", "3, 2", 0)
    log.close()

    line = capsys.readouterr().err
    assert line.endswith("Z info Registered process (3, 2) for job 0.\n")


def test_hostile_text_is_one_printable_line(log: AgentLog, tmp_path: Path) -> None:
    log.set_file(str(tmp_path / "a.log"), 1 << 20)

    LOGGER.warning("command %s", "evil\x1b[2J\r\nfake line\u202e" + "x" * 9000)

    [line] = (tmp_path / "a.log").read_text().splitlines()
    assert "evil\\x1b[2J\\x0d | fake line\\u202e" in line
    assert len(line) < 5000


def test_error_has_its_traceback_in_one_line(log: AgentLog, tmp_path: Path) -> None:
    log.set_file(str(tmp_path / "a.log"), 1 << 20)

    try:
        raise ValueError("broken")  # noqa: TRY301
    except ValueError:
        LOGGER.exception("a part failed")

    [line] = (tmp_path / "a.log").read_text().splitlines()
    assert "a part failed | Traceback" in line
    assert line.endswith("ValueError: broken")


def test_file_and_the_one_before_it_stay_within_their_bound(log: AgentLog, tmp_path: Path) -> None:
    log.set_file(str(tmp_path / "a.log"), 64 << 10)

    for number in range(400):
        LOGGER.info("%d %s", number, "x" * 1000)

    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["a.log", "a.log.1"]
    assert sum(one.stat().st_size for one in files) <= 64 << 10


def test_flood_is_cut_and_counted(log: AgentLog, tmp_path: Path) -> None:
    log.set_file(str(tmp_path / "a.log"), 64 << 20)

    for _ in range(5000):
        LOGGER.info("Registered process")

    assert len((tmp_path / "a.log").read_text().splitlines()) < 1000


def test_file_that_others_moved_is_made_anew(log: AgentLog, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log.set_file(str(path), 1 << 20)
    path.rename(tmp_path / "a.log.old")

    log.set_file(str(path), 1 << 20)
    LOGGER.info("after")

    assert "after" in path.read_text()


def test_file_that_cannot_be_written_is_told_and_the_log_goes_on(
    log: AgentLog, tmp_path: Path
) -> None:
    log.set_file(str(tmp_path / "a.log"), 1 << 20)

    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        log.set_file(str(tmp_path), 1 << 20)

    LOGGER.info("still here")
    assert "still here" in (tmp_path / "a.log").read_text()


def test_log_is_for_its_owner_alone(log: AgentLog, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log.set_file(str(tmp_path / "a.log"), 4096)
        for _ in range(99):
            LOGGER.info("%s", "x" * 60)
    finally:
        os.umask(before)

    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["a.log", "a.log.1"]
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in names} == {0o600}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give links away")
@pytest.mark.parametrize("trap", ["link", "pipe"])
def test_what_another_user_laid_in_its_place_is_not_written_to(
    log: AgentLog, tmp_path: Path, trap: str
) -> None:
    other, path = tmp_path / "other", tmp_path / "a.log"
    other.touch()
    if trap == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    os.lchown(path, 65534, 65534)

    with pytest.raises(UsageError, match="cannot be written"):
        log.set_file(str(path), 1 << 20)
    LOGGER.info("somewhere else")
    assert not other.read_bytes()


def test_log_may_lie_behind_a_link_of_this_user(log: AgentLog, tmp_path: Path) -> None:
    (tmp_path / "a.log").symlink_to(tmp_path / "other")

    log.set_file(str(tmp_path / "a.log"), 1 << 20)
    LOGGER.info("here")
    assert "here" in (tmp_path / "other").read_text()


def test_full_disk_hurts_nobody(log: AgentLog, capsys: pytest.CaptureFixture[str]) -> None:
    # A device that is always full stands for the disk.
    log.set_file("/dev/full", 1 << 20)

    LOGGER.info("nobody will read this")

    assert capsys.readouterr().err == ""
