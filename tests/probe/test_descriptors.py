"""Descriptors of the probe in a job that closes what it finds, reuses it, or has few of them."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.launch.running import NO_COMPILER, clean_environment
from tests.probe.job import PROBE_DIR
from tests.probe.kineto.fabric import fabric

from whystuck.probe.descriptors import Descriptor, check

# Takes every descriptor at one moment, and goes on with files of its own in their place.
SCRIPT = """
import os, signal, subprocess, sys, threading, time
at, files = sys.argv[1], []
def take(moment):
    if moment != at:
        return
    os.closerange(3, 4096)
    for number in range(40):
        files.append(os.open(f"own-{number}", os.O_RDWR | os.O_CREAT, 0o600))
        os.write(files[-1], b"own %d" % number)
    limit = os.sysconf("SC_OPEN_MAX")
    for number in (*range(980, 1024), *range(1500, 1600)):
        if number < limit:
            os.dup2(files[0], number)
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
take("start")
import torch; NO_COMPILER
take("torch")
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(4):
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if step == 1:
        take("step")
    time.sleep(0.3)
if at == "thread":
    thread = threading.Thread(target=take, args=("thread",))
    thread.start()
    thread.join()
take("end")
time.sleep(1)  # Python learns in the main thread that it is to write signals elsewhere
for _ in range(20):
    signal.raise_signal(signal.SIGUSR1)
    time.sleep(0.1)
sys.stdout.flush()
if len(sys.argv) > 2:
    sys.exit(7)  # nothing can be forked
child = os.fork()
if not child:
    os.closerange(3, 4096)
    fd = os.open("of-child", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b"of child")
    time.sleep(0.5)
    os._exit(3)
print(os.waitpid(child, 0)[1], len(seen))
print(subprocess.run(["sh", "-c", "ls /proc/self/fd | wc -l"], capture_output=True).stdout)
for fd in files:
    os.lseek(fd, 0, 0)
    print(os.read(fd, 4096))
sys.exit(7)
""".replace("NO_COMPILER", NO_COMPILER)


Ending = tuple[int, bytes, bytes, dict[str, bytes]]


@contextmanager
def _running(
    folder: Path, args: list[str], extra: Mapping[str, str], prepare: Callable[[], None] | None
) -> Iterator[Callable[[], Ending]]:
    """Start the script; yield what waits for its end and returns all that can be seen of it."""
    work = folder / ("probe" if extra else "bare")
    work.mkdir(mode=0o777)
    work.chmod(0o777)
    (work / "train.py").write_text(SCRIPT)
    process = subprocess.Popen(
        args,
        env=clean_environment(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", OMP_NUM_THREADS="1", HOME=str(work)
        )
        | dict(extra),
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=prepare,  # noqa: PLW1509 - it sets a limit, no more
    )

    @cache
    def end() -> Ending:
        out, err = process.communicate(timeout=200)
        files = {one.name: one.read_bytes() for one in work.glob("o*-*")}
        return process.returncode, out, err, files

    with process:
        try:
            yield end
        finally:
            process.kill()


def _compare(
    at: str,
    prepare: Callable[[], None] | None = None,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    left: str = "beat",
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run bare and with the probe, side by side as both sleep much, and compare what is seen."""
    folder = Path(tempfile.mkdtemp(prefix="ws"))
    try:
        folder.chmod(0o777)
        jobs = folder / "job"
        jobs.mkdir()
        if before:
            os.chown(jobs, STRANGER, -1)  # the probe writes into a folder of its own user only
        (jobs / "switch.json").write_text('{"generation": 1, "comm": "on"}')
        variables = {"PYTHONPATH": str(PROBE_DIR / "site"), "WHYSTUCK_JOB_DIR": str(jobs)}
        args = [*before, sys.executable, "train.py", at, *after]
        with _running(folder, args, {}, prepare) as end_bare:
            if before:  # its limit counts all processes of the user
                end_bare()
            with _running(folder, args, variables | dict(more), prepare) as end:
                bare = end_bare()
                assert bare[0] == 7, bare[2].decode()
                assert end() == bare
        assert list(jobs.glob(f"{left}-*"))
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_job_with_an_agent_that_closes_all_is_as_without_us() -> None:
    with fabric() as served:
        _compare("step", more={"WHYSTUCK_AGENT_DIR": str(served.folder)})
        assert served.polls


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("start", marks=pytest.mark.slow),
        pytest.param("torch", marks=pytest.mark.slow),
        pytest.param("step", marks=pytest.mark.slow),
        pytest.param("thread", marks=pytest.mark.slow),
        "end",
    ],
)
def test_job_that_closes_all_and_reuses_the_numbers_is_as_without_us(at: str) -> None:
    _compare(at)


def _limit_files(count: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


@pytest.mark.parametrize("count", [pytest.param(64, marks=pytest.mark.slow), 1024])
def test_job_with_few_descriptors_is_as_without_us(count: int) -> None:
    _compare("step", _limit_files(count), left="beat" if count > 256 else "disarmed")


STRANGER = 59998
# Another user, whom the limit holds for, and who may read what only root can.
NO_THREAD = (
    *("setpriv", f"--reuid={STRANGER}", "--clear-groups"),
    *("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "prlimit", "--nproc=1"),
)


def test_job_that_can_start_no_thread_is_as_without_us() -> None:
    if os.getuid() != 0 or not (shutil.which("setpriv") and shutil.which("prlimit")):
        pytest.skip("needs root, to be another user, and setpriv and prlimit of util-linux")
    with fabric() as served:
        agent = {"WHYSTUCK_AGENT_DIR": str(served.folder)}
        _compare("step", before=NO_THREAD, after=["alone"], left="leaving", more=agent)


def test_descriptor_that_was_reused_is_never_touched(tmp_path: Path) -> None:
    lost: list[str] = []
    ours = Descriptor(os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT), lambda: lost.append("x"))
    number = ours.fd
    assert number >= 900
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, number)

    assert ours.fd == -1
    check()
    check()
    ours.close()
    assert lost == ["x"]
    assert os.path.samestat(os.fstat(number), os.fstat(other))
    os.close(number)
    os.close(other)


def test_descriptor_that_cannot_be_replaced_is_tried_again(tmp_path: Path) -> None:
    tries: list[int] = []

    def replace() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError

    ours = Descriptor(os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT), replace)
    os.close(ours.fd)
    for _ in range(5):
        check()
    assert len(tries) == 3


def test_forked_child_has_none_of_them(tmp_path: Path) -> None:
    ours = Descriptor(os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT))
    number = ours.fd
    child = os.fork()
    if not child:
        try:
            os.fstat(number)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert ours.fd == number
    ours.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_why_there_is_no_probe_is_not_written_for_another_user(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    os.chown(folder, STRANGER, -1)
    done = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        env=clean_environment(
            PYTHONPATH=str(PROBE_DIR / "site"), WHYSTUCK_JOB_DIR=str(folder),
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
        ),
        preexec_fn=_limit_files(64), capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"1\n", b"")
    assert list(folder.iterdir()) == []
