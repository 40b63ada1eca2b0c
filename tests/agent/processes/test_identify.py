from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from whystuck.agent.processes.identify import Identity, identify
from whystuck.collect.processes.proc_files import read_name, read_start, read_words

WAIT = "print('ready', flush=True); input()"


@contextmanager
def _started(*, code: str = WAIT, **environment: str) -> Iterator[int]:
    """A process with nothing but this environment."""
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate(b"\n")


def _identify(**environment: str) -> Identity:
    with _started(**environment) as pid:
        identity = identify(pid)
    assert identity is not None
    return identity


def _rank_of(**environment: str) -> tuple[int, int, int, bool]:
    one = _identify(**environment)
    return one.rank, one.local_rank, one.world_size, one.is_elastic


def test_process_without_a_job() -> None:
    with _started() as pid:
        identity = identify(pid)
        start = read_start(pid)
    assert identity is not None
    assert start is not None
    assert start[0] == os.getpid()
    assert identity.parents[0] == os.getpid()
    assert 1 not in identity.parents
    assert identity.command.startswith(f"{sys.executable} -c print(")
    assert (identity.inner_pid, identity.start_ticks) == (pid, start[1])
    assert (identity.rank, identity.job, identity.job_dir) == (-1, "", "")
    assert not identity.is_launcher


def test_ended_process_is_none() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert read_start(process.pid) is None  # it has ended, and nobody has asked how
    assert identify(process.pid) is None
    assert read_words(process.pid) == []
    assert read_name(process.pid) == ""


def test_rank_of_torchrun() -> None:
    named = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "run7"}
    identity = _identify(**named, SLURM_JOB_ID="42", SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="2")
    assert (identity.rank, identity.local_rank, identity.world_size) == (5, 1, 8)
    assert identity.is_elastic
    assert identity.job == "42"
    assert identity.job_names == ("42", "run7")


def test_ranks_of_other_launchers() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
    assert _rank_of(**slurm, SLURM_STEP_NUM_TASKS="4") == (3, 1, 4, False)
    assert _rank_of(**slurm) == (3, 1, 8, False)
    mpi = {f"OMPI_COMM_WORLD_{name}": value for name, value in [("RANK", "2"), ("SIZE", "4")]}
    assert _rank_of(**mpi, OMPI_COMM_WORLD_LOCAL_RANK="0") == (2, 0, 4, False)
    assert _rank_of(PMI_RANK="1", PMI_SIZE="2", MPI_LOCALRANKID="1") == (1, 1, 2, False)
    assert _rank_of(RANK="0", WORLD_SIZE="2") == (0, -1, 2, False)


def test_hostile_variables_are_unknown(tmp_path: Path) -> None:
    for bad in ("", "-1", "x", "1e3", "٣", "9" * 5000, "1 "):
        assert _rank_of(RANK=bad, LOCAL_RANK=bad, WORLD_SIZE=bad)[:3] == (-1, -1, -1)
    good, link = tmp_path / "whystuck-0-good", tmp_path / "whystuck-0-link"
    good.mkdir(mode=0o700)
    link.symlink_to(good)
    (tmp_path / "whystuck-0-open").mkdir(mode=0o755)
    (tmp_path / "whystuck-0-file").touch()
    names = ("link", "open", "file", "none", "good/../whystuck-0-good")
    bad_folders = ("relative", "/nowhere", "/etc", str(tmp_path))
    for bad in (*bad_folders, *(f"{tmp_path}/whystuck-0-{name}" for name in names)):
        assert _identify(WHYSTUCK_JOB_DIR=bad).job_dir == ""
    assert _identify(WHYSTUCK_JOB_DIR=str(good)).job_dir == str(good)
    assert len(_identify(TORCHELASTIC_RUN_ID="x" * 9000).job) == 200
    assert _identify(TORCHELASTIC_RUN_ID="none").job == ""


def test_job_under_whystuck_has_names_that_choose_it(tmp_path: Path) -> None:
    folder = tmp_path / "whystuck-0-job"
    folder.mkdir(mode=0o700)
    (folder / "owner").write_text("4711")
    identity = _identify(WHYSTUCK_JOB_DIR=str(folder))
    assert identity.job_dir == str(folder)
    assert identity.job_names == (folder.name, str(folder), "4711")
    (folder / "owner").write_text("x" * 100)
    assert _identify(WHYSTUCK_JOB_DIR=str(folder)).job_names[-1] == str(folder)


NAME = (
    "import ctypes; ctypes.CDLL(None).prctl(15, b'pt_data_worker'); print('ready', flush=True);"
    " input()"
)


def test_name_that_torch_gives_is_read() -> None:
    with _started(code=NAME) as pid:
        assert read_name(pid) == "pt_data_worker"


AS_OTHER_USER = "import os; os.setuid(12345); print('ready', flush=True); input()"


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which root can")
def test_process_of_another_user_is_known_by_its_command() -> None:
    with _started(code=AS_OTHER_USER, RANK="1") as pid:
        identity = identify(pid)
    assert identity is not None
    assert identity.command.startswith(sys.executable)
