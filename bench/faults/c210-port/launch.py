"""Starts the job on a port that a program left over from the last one still has."""

import socket
import subprocess
import sys
from pathlib import Path

from _train.spawn import spawn_ranks


def main() -> int:
    seed = sys.argv[1]
    job = Path(__file__).with_name("job.py")
    with socket.create_server(("", 0)) as old:
        port = str(old.getsockname()[1])
        if int(seed) % 2:
            return spawn_ranks(job, seed, port=int(port), patience=5)
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        where = ["--nnodes", "1", "--nproc-per-node", "4", "--master-port", port]
        return subprocess.run([torchrun, *where, str(job), "--seed", seed], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
