"""The probe, broken on purpose: the job must end as it would without us."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.probe.job import copy_probe, job_dir, start_rank

pytestmark = pytest.mark.torch

# what is broken: the file, the text in it, and what takes its place
SABOTAGE = {
    "raises on import": ("install.py", "import os\n", "import os\nraise OSError('broken')\n"),
    "raises at start": ("install.py", "        if self.identity", "        1 / 0\n        if self"),
    "raises with torch": ("install.py", "        self.knows_torch = True", "        1 / 0"),
    "raises in its thread": ("server.py", "            self._loop()", "            1 / 0"),
    "hangs in its thread": ("server.py", "            self._loop()", "            time.sleep(1e6)"),
    "raises in the beat": ("beat.py", "        self._count += 1", "        1 / 0"),
    "raises for a group": (
        "identity.py",
        "        if rank < 0",
        "        1 / 0\n        if rank < 0",
    ),
    "raises at optimizers": (
        "progress.py",
        "    optimizer = sys",
        "    1 / 0\n    optimizer = sys",
    ),
    "raises at exit": ("dumps.py", "    found = recorders", "    1 / 0\n    found = recorders"),
    "raises in sys.exit": (
        "leaving.py",
        "        if status in",
        "        1 / 0\n        if status in",
    ),
    "raises for its switch": (
        "switch.py",
        "    def acknowledge",
        "    1 / 0\n\n    def acknowledge",
    ),
    "raises in its switch": (
        "switch.py",
        "        try:\n            self._read",
        "        try:\n            1 / 0\n            self._read",
    ),
    "raises in its server": ("worker_server.py", "    made = []", "    1 / 0"),
    "raises in the hook": (
        "exceptions.py",
        "        record = describe",
        "        1 / 0\n        describe",
    ),
}


def _outcome(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def site_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: copy_probe(tmp_path_factory.mktemp("probe"), *change)
        for name, change in SABOTAGE.items()
    }


@pytest.mark.parametrize("how", SABOTAGE)
def test_job_when_the_probe_is_broken_then_ends_with_its_own_code(
    tmp_path: Path, how: str, site_of: dict[str, Path]
) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, "sys.exit(42)", site_of[how])
        assert _outcome(process) == (42, b"trained\n", b"")


@pytest.mark.parametrize("how", ["raises in the hook", "hangs in its thread"])
def test_job_when_it_raises_with_a_broken_probe_then_prints_its_own_traceback(
    tmp_path: Path, how: str, site_of: dict[str, Path]
) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, "raise RuntimeError('mine')", site_of[how])
        code, _, err = _outcome(process)
    assert code == 1
    assert err.count(b"Traceback") == 1
    assert err.rstrip().endswith(b"RuntimeError: mine")
    assert b"whystuck" not in err


def test_job_when_the_job_folder_is_missing_then_ends_normally(tmp_path: Path) -> None:
    process = start_rank(tmp_path, tmp_path / "gone", "sys.exit(42)")
    assert _outcome(process) == (42, b"trained\n", b"")


def test_job_when_the_job_folder_cannot_be_written_then_ends_normally(tmp_path: Path) -> None:
    # a folder of the kernel in which nobody, root included, can make a file
    process = start_rank(tmp_path, "/proc/self", "sys.exit(42)")
    assert _outcome(process) == (42, b"trained\n", b"")


@pytest.fixture
def full_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ws") as name:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=64", "tmpfs", name]
        if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("mounting a small file system needs root")
        try:
            with (
                (Path(name) / "filler").open("wb", buffering=0) as filler,
                contextlib.suppress(OSError),
            ):
                while filler.write(b"x" * 4096):
                    pass
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


@pytest.mark.parametrize(("then", "code"), [("sys.exit(42)", 42), ("raise SystemError", 1)])
def test_job_when_the_disk_is_full_then_ends_normally(
    tmp_path: Path, full_disk: Path, then: str, code: int
) -> None:
    process = start_rank(tmp_path, full_disk, then)
    assert _outcome(process)[:2] == (code, b"trained\n")


def test_job_when_the_supervisor_never_answers_then_ends_with_its_own_code(tmp_path: Path) -> None:
    with job_dir() as folder, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(folder / "supervisor.sock"))
        deaf.listen(64)
        process = start_rank(tmp_path, folder, "raise RuntimeError('mine')")
        code, out, err = _outcome(process)
    assert (code, out) == (1, b"trained\n")
    assert err.rstrip().endswith(b"RuntimeError: mine")
