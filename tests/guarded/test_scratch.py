"""Scratch folders go with the process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from whystuck.guarded.scratch import scratch_folder


def test_folder_is_private_and_goes_with_the_block() -> None:
    with scratch_folder() as outer:
        with scratch_folder() as inner:
            assert inner.stat().st_mode & 0o777 == 0o700
        assert not inner.exists()
        assert outer.is_dir()
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert not outer.exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handler_of_the_process_stays() -> None:
    ours = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        handler = signal.getsignal(signal.SIGTERM)
        with scratch_folder():
            assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, ours)


_FORKS = """
import os, signal, sys
from whystuck.guarded.scratch import scratch_folder
with scratch_folder() as outer, scratch_folder() as inner:
    (inner / "file").write_text("x")
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(9)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), inner.exists(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_only_the_process_that_made_folders_removes_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (-signal.SIGTERM, f"{-signal.SIGTERM} True\n")
    assert list(tmp_path.iterdir()) == []
