"""What whystuck keeps is for its owner alone; what the job makes is as it was without whystuck."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.running import WHYSTUCK, clean_environment, run_whystuck, torchrun
from tests.probe.kineto.fabric import WAIT_S, wait_until

from whystuck.evidence.private import make_private, private_files
from whystuck.launch.environment.recorder import RecorderSettings
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.torch_dumps import TorchDumps
from whystuck.probe import files

UMASKS = pytest.mark.parametrize("umask", [0, 0o022], ids=["0", "022"])
# Makes a file, a folder and a process, and tells the modes that they get.
MAKES = """
import os, subprocess, sys
name = "of-job-" + os.environ.get("RANK", "0")
open(name, "w").close()
os.mkdir(name + "-folder")
umask = os.umask(0); os.umask(umask)
below = subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True).stdout
modes = [oct(os.stat(path).st_mode) for path in (name, name + "-folder")]
print(umask, int(below, 8), *modes, flush=True)
"""
HANGS = (
    MAKES
    + """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
stop = torch.zeros(1)
while not stop.item():
    optimizer.zero_grad()
    layer(torch.ones(4, 4)).sum().backward()
    optimizer.step()
    stop[0] = float(os.path.exists("hang"))
    dist.all_reduce(stop)
    time.sleep(0.002)
if dist.get_rank() == 1:
    time.sleep(3600)
dist.all_reduce(stop)
"""
)
RAISES = MAKES + "import ctypes\nctypes.string_at(0)\n"


def open_to_others(folder: Path) -> dict[str, str]:
    """All below a folder, and itself, that has another mode than it should, with its mode."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        wanted = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        if stat.S_IMODE(status.st_mode) != wanted:
            found[str(path.relative_to(folder))] = oct(status.st_mode)
    return found


def can_read_as(uid: int, path: str, cwd: Path) -> bool:
    if os.getuid() != 0:
        return uid == 0  # only root can become another user
    code = (
        "import os, sys; uid, path = int(sys.argv[1]), sys.argv[2]\n"
        "os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)\n"
        "os.close(os.open(path, os.O_RDONLY))"
    )
    command = [sys.executable, "-c", code, str(uid), path]
    return subprocess.run(command, cwd=cwd, capture_output=True, check=False).returncode == 0


def test_files_of_the_probe_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files.write_atomically(str(tmp_path / "whole"), b"x")
        files.open_private(str(tmp_path / "open")).close()
        files.make_mapped(str(tmp_path / "mapped"), 10)
    finally:
        os.umask(before)

    assert set(open_to_others(tmp_path)) <= {"."}


def run_plain(script: Path, cwd: Path, umask: int) -> bytes:
    command = [sys.executable, str(script)]
    cwd.mkdir()
    done = subprocess.run(command, cwd=cwd, capture_output=True, umask=umask, check=False)
    return done.stdout


@UMASKS
def test_evidence_of_a_crash_is_private_and_the_job_keeps_its_umask(
    tmp_path: Path, umask: int
) -> None:
    script = tmp_path / "job.py"
    script.write_text(RAISES)
    bare = run_plain(script, tmp_path / "bare", umask)
    cwd = tmp_path / "watched"
    cwd.mkdir()

    done = subprocess.run(
        [*WHYSTUCK, "run", "--evidence", "a/ev", "--", sys.executable, str(script)],
        cwd=cwd,
        env=clean_environment(RANK="0", WORLD_SIZE="1"),
        capture_output=True,
        umask=umask,
        timeout=120,
        check=False,
    )

    assert done.stdout == bare != b""
    assert (cwd / "a/ev/incidents/000/report.json").exists()
    assert open_to_others(cwd / "a") == {}
    for folder in (tmp_path, cwd):
        folder.chmod(0o711)
    for path in ("a", "a/ev", "a/ev/incidents/000/report.json"):
        assert can_read_as(0, path, cwd)
        assert not can_read_as(65534, path, cwd)


@pytest.mark.parametrize("umask", [0, pytest.param(0o022, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_all_that_is_kept_of_a_stall_and_a_trace_is_private(tmp_path: Path, umask: int) -> None:
    script = tmp_path / "job.py"
    script.write_text(HANGS)
    command = ["run", "--stall-after", "6", "--on-stall", "kill", "--evidence", "ev"]
    process = subprocess.Popen(
        [*WHYSTUCK, *command, "--nccl-debug", "INIT", "--", *torchrun(2, script, is_traced=True)],
        cwd=tmp_path,
        env=clean_environment(TORCH_FR_BUFFER_SIZE="100"),
        stdout=subprocess.PIPE,
        umask=umask,
    )
    wait_until(lambda: "Registered" in "".join(map(Path.read_text, tmp_path.rglob("agent.log"))))
    ask = ["trace", "start", "--pid", str(process.pid), "--iterations", "3", "--wait"]
    tracing = subprocess.run(
        [*WHYSTUCK, *ask, "-o", str(tmp_path / "ev" / "traces")],
        cwd=tmp_path,
        umask=umask,
        timeout=WAIT_S,
        check=False,
    )
    assert tracing.returncode == 0
    (tmp_path / "hang").touch()
    out, _ = process.communicate(timeout=WAIT_S)

    assert process.returncode == 124
    told = sorted(line for line in out.decode().splitlines() if line[:1].isdigit())
    file, folder = (
        oct(kind | mode & ~umask) for kind, mode in ((0o100000, 0o666), (0o40000, 0o777))
    )
    assert told == [f"{umask} {umask} {file} {folder}"] * 2
    names = {path.name for path in (tmp_path / "ev").rglob("*")}
    assert {"report.json", "env.json", "agent.log", "sources", "launcher.txt"} <= names
    assert any(name.endswith(".json.gz") for name in names)
    assert open_to_others(tmp_path / "ev") == {}


def test_a_snapshot_is_private_and_a_report_of_the_user_is_not(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(HANGS)
    (tmp_path / "hang").touch()
    process = subprocess.Popen(
        torchrun(2, script), cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE
    )
    try:
        wait_until((tmp_path / "of-job-1-folder").exists)
        command = ["snapshot", "--pid", str(process.pid), "--evidence", "ev", "-o", "report.txt"]
        done: list[subprocess.CompletedProcess[bytes]] = []

        def is_taken() -> bool:
            done.append(
                subprocess.run(
                    [*WHYSTUCK, *command],
                    cwd=tmp_path,
                    env=clean_environment(),
                    capture_output=True,
                    umask=0o022,
                    timeout=WAIT_S,
                    check=False,
                )
            )
            return done[-1].returncode in {0, 1, 3}

        wait_until(is_taken)
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)

    assert open_to_others(tmp_path / "ev") == {}
    assert stat.S_IMODE((tmp_path / "report.txt").stat().st_mode) == 0o644


def test_what_exists_is_not_changed(tmp_path: Path) -> None:
    evidence = tmp_path / "ev"
    evidence.mkdir()
    evidence.chmod(0o755)
    (evidence / "mine").touch()
    (evidence / "mine").chmod(0o644)

    run_whystuck("run", "--evidence", "ev", "--", "true", cwd=tmp_path)

    assert stat.S_IMODE(evidence.stat().st_mode) == 0o755
    assert set(open_to_others(evidence)) == {".", "mine"}


def test_a_dump_that_torch_wrote_is_made_private(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "ev", "n1")
    dumps = TorchDumps(evidence, RecorderSettings(), lambda _: None)
    written = Path(dumps.variables["TORCH_FR_DUMP_TEMP_FILE"] + "0")
    written.write_bytes(b"")
    written.chmod(0o644)

    assert dumps.keep(evidence.next_incident())

    (kept,) = tmp_path.rglob("rank-0/*")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_the_umask_comes_back(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with private_files() as umask:
            (tmp_path / "inside").touch()
        (tmp_path / "outside").touch()
    finally:
        os.umask(before)

    assert umask == 0o027
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("inside", "outside")]
    assert modes == [0o600, 0o640]


def test_a_file_is_made_private_and_no_link_is_followed(tmp_path: Path) -> None:
    for name in ("file", "target"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "fifo", 0o644)
    fifo = stat.S_IMODE((tmp_path / "fifo").stat().st_mode)

    for name in ("file", "link", "fifo", "missing"):
        make_private(tmp_path / name)

    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "target", "fifo")]
    assert modes == [0o600, 0o644, fifo]
