"""Real jobs whose Kineto asks an agent, and an agent that only keeps who asks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.launch.running import clean_environment

from whystuck.agent.fabric.addresses import PathAddress
from whystuck.agent.fabric.endpoint import FabricEndpoint
from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.processes.registry import ProcessRegistry

# It steps until somebody writes to its input, and ends with a code of its own.
LOOP = """
import select, sys, torch
import torch.distributed as dist, os
weight = torch.nn.Parameter(torch.ones(4))
# Before the group: it imports what would keep a group past its end, with threads that abort then.
optimizer = torch.optim.SGD([weight], lr=0.1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
print("ready", flush=True)
stop = os.environ["STOP_FILE"]
while not os.path.exists(stop):
    optimizer.zero_grad()
    weight.sum().backward()
    if dist.is_initialized():
        dist.all_reduce(weight.grad)
    optimizer.step()
    select.select([], [], [], 0.01)
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
sys.exit(7)
"""


class Job:
    """A job that runs as a user would start it, and leads Kineto to a folder."""

    def __init__(
        self,
        where: Path,
        *command: str,
        folder: str | None,
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._stack = ExitStack()
        self.script = where / "job.py"
        self.script.write_text(LOOP)
        self._stop = where / f"stop-{id(self)}"
        config = where / "kineto.conf"
        config.write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
        led = {"KINETO_IPC_SOCKET_DIR": folder} if folder else {}
        given = {
            "KINETO_USE_DAEMON": "1",
            "KINETO_CONFIG": str(config),
            "STOP_FILE": str(self._stop),
            "WHYSTUCK_DISABLE": "1",
        }
        self.log = where / f"log-{id(self)}"
        log = self._stack.enter_context(self.log.open("wb"))
        self.process = subprocess.Popen(
            [*prefix, *(command or (sys.executable,)), str(self.script)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=clean_environment(**given, **led, **(environment or {})),
            cwd=where,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._stack.close()

    def finish(self) -> int:
        """Let it come to its end, and return its exit code."""
        self._stop.touch()
        return self.process.wait(60)


class Keeper:
    """The least that answers polls: it notes who asks."""

    def __init__(self) -> None:
        self.registry = ProcessRegistry()

    def answer(self, poll: FabricPoll) -> str:
        self.registry.note(poll)
        return ""

    def pids(self) -> list[int]:
        return [entry.pid for entry in self.registry.list_all()]


def main() -> None:
    """Serve a folder in a process of its own, until that is killed."""
    import asyncio

    async def serve() -> None:
        keeper = Keeper()
        FabricEndpoint(keeper, PathAddress(Path(sys.argv[1]))).start()
        print("ready", flush=True)
        seen: list[int] = []
        while True:
            await asyncio.sleep(0.02)
            if keeper.pids() != seen:
                seen = keeper.pids()
                print(*seen, flush=True)

    asyncio.run(serve())


if __name__ == "__main__":
    os.environ.pop("WHYSTUCK_AGENT_DIR", None)
    main()
