"""Programs are started by a child that has none of our files, or by ourselves."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from whystuck.collect import programs
from whystuck.collect.programs import run_program, starting_apart


@pytest.fixture(params=["apart", "ourselves"])
def _started(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "apart":
        with starting_apart():
            yield
    else:
        yield


def _python(code: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[bytes]:
    return run_program([sys.executable, "-c", code], timeout_s)


@pytest.mark.usefixtures("_started")
def test_output_and_code_come_back() -> None:
    done = _python("import os; os.write(1, b'o' * 300_000); os.write(2, b'err'); os._exit(7)")
    assert (done.returncode, len(done.stdout), done.stderr) == (7, 300_000, b"err")


@pytest.mark.usefixtures("_started")
def test_many_run_side_by_side() -> None:
    codes = [f"print({number})" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        outputs = [done.stdout for done in pool.map(_python, codes)]
    assert outputs == [b"%d\n" % number for number in range(12)]


@pytest.mark.usefixtures("_started")
def test_program_that_is_missing_raises() -> None:
    with pytest.raises(FileNotFoundError):
        run_program(["/nonexistent/program"], 60.0)


@pytest.mark.usefixtures("_started")
def test_program_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    with pytest.raises(subprocess.TimeoutExpired):
        _python(f"{code}; time.sleep(600)", 2.0)
    if (tmp_path / "pid").exists():  # on a loaded machine, it may not have come so far
        pid = int((tmp_path / "pid").read_text())
        assert not os.path.exists(f"/proc/{pid}/exe")  # noqa: PTH110 - as a link it stays


@pytest.mark.parametrize("fd", [1, 2])
def test_program_that_writes_without_an_end_is_killed(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_MAX_OUTPUT_BYTES", 1 << 20)
    code = f"import os\nwhile True: os.write({fd}, b'x' * 65536)"

    with pytest.raises(OSError) as told:  # noqa: PT011 - its number tells
        _python(code)
    with starting_apart(), pytest.raises(OSError) as told_apart:  # noqa: PT011 - as above
        _python(code)

    assert told.value.errno == told_apart.value.errno == errno.EFBIG


def test_program_started_apart_has_none_of_our_files(tmp_path: Path) -> None:
    lists = "import os; print(sorted(os.readlink(f'/proc/{os.getppid()}/fd/{fd}') "
    lists += "for fd in os.listdir(f'/proc/{os.getppid()}/fd')))"
    before = (tmp_path / "before").open("w")
    with before, starting_apart(), (tmp_path / "after").open("w"):
        assert str(tmp_path).encode() not in _python(lists).stdout
