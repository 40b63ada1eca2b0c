"""``whystuck shell`` where a rank lives in namespaces of its own, as in a container.

On gloo alone: a shell is where the process is, whatever it talks by.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.launch.running import LONG, PATIENCE_S, WHYSTUCK, clean_environment, run_whystuck

pytestmark = LONG
RANK = """
import os, time
from pathlib import Path
import torch
import torch.distributed as dist

store = dist.FileStore(os.environ["STORE"], 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
dist.barrier()
print("up", os.getpid(), flush=True)
while not Path(os.environ["STORE"] + ".end").exists():
    time.sleep(0.1)
"""
# What a container has: a host name, mounts, a loopback and processes of its own.
INSIDE = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
echo inner > /proc/sys/kernel/hostname
ip link set lo up
mkdir -p "$1/data"
mount -t tmpfs data "$1/data"
cd "$1/data"
echo from the container > note
shift
exec "$@"
"""
KINDS = ("--mount", "--uts", "--ipc", "--net", "--pid")


def list_namespaces(*more: str) -> list[str]:
    """Return a command that makes namespaces; skips the test where none can be made."""
    command = ["unshare", *KINDS, *more, "--fork", "--kill-child"]
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("there is no `unshare` or no `ip`")
    done = subprocess.run([*command, "true"], check=False, capture_output=True, timeout=PATIENCE_S)
    if done.returncode:
        pytest.skip(f"no namespaces can be made: {done.stderr.decode().strip()}")
    return command


@contextmanager
def start(folder: Path, namespaces: list[str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a rank in namespaces; yield `whystuck run` and the pid that the rank knows."""
    script, store = folder / "train.py", folder / "store"
    script.write_text(RANK)
    process = subprocess.Popen(
        [*WHYSTUCK, "run", "--no-agent", "--evidence", "ev", "--",
         *namespaces, "sh", "-c", INSIDE, "sh", str(folder), "python", str(script)],
        cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env=clean_environment(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", STORE=str(store), TRAINS="yes"
        ),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("up "), line
        yield process, int(line.split()[1])
    finally:
        Path(f"{store}.end").touch()
        process.communicate(timeout=PATIENCE_S)


def ask(process: subprocess.Popen[str], folder: Path, command: str) -> tuple[int, str]:
    """Run shell where the rank is; return code and output."""
    until_s = time.monotonic() + 30
    while True:
        done = run_whystuck(
            "shell", "--job", str(process.pid), "0", "--", "sh", "-c", command, cwd=folder
        )
        # Its first heartbeat comes a moment after the rank is up.
        if b"does not run here" not in done.stderr or time.monotonic() > until_s:
            return done.returncode, done.stdout.decode() + done.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--user", "--map-root-user")], ids=["root", "rootless"])
def test_shell_is_in_the_namespaces_of_the_rank(tmp_path: Path, more: tuple[str, ...]) -> None:
    shows = (
        'cat note; hostname; echo "$TRAINS $RANK_PID"; kill -0 "$RANK_PID" && echo reached; '
        "ls -d /proc/[0-9]* | wc -l; ip -o link | wc -l; "
        'for kind in mnt uts ipc net; do [ "$(readlink /proc/self/ns/$kind)" = '
        '"$(readlink /proc/$RANK_PID/ns/$kind)" ] && echo "same $kind"; done; exit 5'
    )  # fmt: skip
    with start(tmp_path, list_namespaces(*more)) as (process, pid):
        code, said = ask(process, tmp_path, shows)

    assert code == 5, said
    note, host, known, reached, processes, links, *same = said.splitlines()
    assert (note, host) == ("from the container", "inner")
    assert known == f"yes {pid}"
    assert pid < 100
    assert reached == "reached"
    assert int(processes) < 20
    assert links == "1"
    assert same == ["same mnt", "same uts", "same ipc", "same net"]


@pytest.mark.slow
def test_end_of_a_program_in_other_namespaces_is_told_as_a_shell_does(tmp_path: Path) -> None:
    with start(tmp_path, list_namespaces()) as (process, _):
        by_signal, _ = ask(process, tmp_path, "kill -TERM $$")
        done = run_whystuck(
            "shell", "--job", str(process.pid), "0", "--", "no-such-program", cwd=tmp_path
        )

    assert by_signal == 128 + 15
    assert done.returncode != 0
    assert b"`no-such-program` cannot be run: No such file or directory" in done.stderr
