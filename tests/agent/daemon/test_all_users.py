"""A real agent of root that serves all users, and a real job of another user."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

from tests.guarded.strangers import STRANGER, needs_root, scenery

WAIT_S = 120.0
# It cannot read Python any more once it is another user's.
JOB = """
import os, sys, time
import torch, torch.autograd, torch.profiler
x = torch.randn(8, 8, requires_grad=True)
x.sum().backward()
os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)
print("ready", flush=True)
while True:
    x.sum().backward(); time.sleep(0.01)
"""


DROP_IN = Path(__file__).parents[3] / "packaging/systemd/whystuck-agent@root.service.d"


def limited() -> list[str]:
    """How a program is started with the capabilities of the unit, and no way to gain others."""
    if not shutil.which("setpriv"):
        return []
    text = (DROP_IN / "all-users.conf").read_text()
    names = [name.lower() for name in re.findall(r"\bCAP_(\w+)", text)]
    bounds = ",".join(("-all", *(f"+{name}" for name in names)))
    return ["setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", "--no-new-privs"]


def whystuck(*words: str) -> list[str]:
    return [sys.executable, "-m", "whystuck", *words]


@needs_root
def test_job_of_another_user_is_traced_and_root_leaves_nothing_elsewhere() -> None:
    with scenery() as place:
        folder, decoy = place.top / "k", place.top / "whystuck-0-decoy"
        decoy.mkdir(mode=0o700)
        environment = {
            **os.environ,
            "KINETO_USE_DAEMON": "1",
            "KINETO_IPC_SOCKET_DIR": str(folder),
            "WHYSTUCK_AGENT_DIR": str(folder),
            "WHYSTUCK_JOB_DIR": str(decoy),
            "WHYSTUCK_DISABLE": "1",
        }
        words = ("agent", "--all-users", "--folder", str(folder), "--port", "0")
        with (
            subprocess.Popen([*limited(), *whystuck(*words)], cwd=place.top) as agent,
            subprocess.Popen(
                [sys.executable, "-c", JOB],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as job,
        ):
            try:
                assert job.stdout is not None
                assert job.stdout.readline() == b"ready\n"
                wait_for(job.pid, environment)
                start = ("trace", "start", "--pid", str(job.pid), "--duration", "0.1", "--wait")
                subprocess.run(
                    whystuck(*start, "--output", str(place.output)),
                    env=environment,
                    check=True,
                    timeout=WAIT_S,
                )
            finally:
                job.kill()
                agent.terminate()
        (trace,) = place.output.iterdir()
        assert (trace.stat().st_uid, stat.S_IMODE(trace.stat().st_mode)) == (0, 0o600)
        assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        assert not list(decoy.iterdir())
        place.check_unharmed()


def wait_for(pid: int, environment: dict[str, str]) -> None:
    """Wait until a process has asked the agent as the user that it has become."""
    until_s = time.monotonic() + WAIT_S
    listed = whystuck("trace", "list", "--format", "json")
    while time.monotonic() < until_s:
        told = subprocess.run(
            listed, env=environment, capture_output=True, text=True, check=False, timeout=WAIT_S
        )
        nodes = json.loads(told.stdout or '{"nodes": []}')["nodes"]
        known = {one["pid"]: one.get("uid") for node in nodes for one in node["processes"]}
        if known.get(pid) == STRANGER:
            return
        time.sleep(0.2)
    raise AssertionError("the agent does not know it")
