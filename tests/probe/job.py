"""A rank of its own, with the probe in it as ``whystuck run`` would put it there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.backends import adapt
from tests.launch.running import REDUCE, clean_environment, without_compiler

import whystuck

PROBE_DIR = Path(whystuck.__file__).parent / "probe"

TRAIN = """
import sys, time
import torch, torch.distributed as dist
REDUCE
dist.init_process_group("gloo")
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    reduce(lambda: layer(torch.ones(2, 4)).sum())
    optimizer.step()
print("trained", flush=True)
exec(sys.argv[1])
dist.destroy_process_group()
""".replace("REDUCE", REDUCE)


@contextmanager
def job_dir() -> Iterator[Path]:
    """Make a job folder with a short path, as unix sockets need; ops are recorded."""
    with tempfile.TemporaryDirectory(prefix="ws") as name:
        (Path(name) / "switch.json").write_text('{"generation": 1, "comm": "on"}')
        yield Path(name)


def copy_probe(target: Path, name: str, old: str, new: str) -> Path:
    """Copy the probe, break one file of it, and return its ``site`` folder."""
    shutil.copytree(PROBE_DIR, target / "probe")
    path = target / "probe" / name
    text = path.read_text()
    assert old in text, f"{name} has no {old!r}"
    path.write_text(text.replace(old, new, 1))
    return target / "probe" / "site"


def start_rank(
    tmp_path: Path,
    folder: Path | str,
    then: str = "",
    site: Path | None = None,
    extra: Mapping[str, str] | None = None,
    *,
    script: str = TRAIN,
    options: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start the training above as rank 0 of 1, with ``then`` run after it.

    The script gets the backend of the test, and no compiler that it does not need.
    """
    path = tmp_path / "train.py"
    path.write_text(without_compiler(adapt(script), then))
    environment = clean_environment(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",  # a world of one binds any port
        PYTHONPATH=str(site or PROBE_DIR / "site"),
        WHYSTUCK_JOB_DIR=str(folder),
    )
    return subprocess.Popen(
        [sys.executable, *options, str(path), then],
        env=environment | dict(extra or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        bufsize=0,  # a line that is read must not take the next one into a buffer
    )


def read_until_trained(process: subprocess.Popen[bytes]) -> None:
    """Wait until the training is over."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"trained\n", process.communicate()


def artifact(folder: Path, kind: str, process: subprocess.Popen[bytes]) -> Path:
    """Return the path of one of the probe's artifacts."""
    return folder / f"{kind}-{process.pid}"
