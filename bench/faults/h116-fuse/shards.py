"""Samples of which one lies in a shard on another mount."""

import mmap
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _train.data import BATCH, Sample, Samples
from _train.stamp import stamp
from _train.training import Job
from silent_fs import FILE_NAME

SERVER = Path(__file__).with_name("silent_fs.py")


@contextmanager
def mounted(job: Job) -> Iterator[Path]:
    """Mount the shards of the rank that will read one; the server ends with that rank."""
    with tempfile.TemporaryDirectory(prefix="shards-") as folder:
        if not job.chosen():
            yield Path(folder)
            return
        mode = "deep" if job.plan.depth else "flat"
        command = [sys.executable, str(SERVER), folder, mode]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"mounted\n"
        try:
            yield Path(folder)
        finally:
            server.terminate()
            server.wait()


class Shards(Samples):
    def __init__(self, job: Job, folder: Path, steps: int) -> None:
        super().__init__(steps * BATCH)
        self.path = folder / FILE_NAME.decode()
        self.bad = job.plan.step * BATCH if job.chosen() else -1
        self.maps_file = job.plan.amount > 0.5

    def load(self, index: int) -> Sample:
        if index == self.bad:
            stamp()
            self.read_shard()  # <- here
        return super().load(index)

    def read_shard(self) -> bytes:
        with self.path.open("rb") as file:
            if not self.maps_file:
                return file.read()  # <- here
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            return mapped[:4096]  # <- here
