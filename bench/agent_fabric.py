"""Requests of torch processes that an agent answers: how many a second, and what one costs.

    python bench/agent_fabric.py [--seconds 5] [--processes 64] [--quick]

So many processes send a request, wait for the answer and send the next one, without a pause, from a
socket of their own as Kineto's client does. The agent's endpoint, its registry and its tracer
answer in a process of its own, on one core. Its CPU time is the kernel's (user and system), so the
capacity of a core does not depend on what else this machine does; the rate by the clock does.

The floor is a loop that reads a datagram and sends 40 bytes back, in Python, without knowing who
asked. The idle share is what 64 processes cost that poll once a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from whystuck.agent.fabric.addresses import PathAddress
from whystuck.agent.fabric.endpoint import FabricEndpoint
from whystuck.agent.fabric.messages import pack_reply, pack_request

Serve = Callable[[Path, int], None]
BAR_PER_S = 20_000
MIN_SAMPLE_S = 0.05


class Result(NamedTuple):
    """One run: requests answered by the clock, and by the CPU time of the server."""

    per_s: float
    per_cpu_s: float
    cpu_us: float


class Mark(NamedTuple):
    """From where a server counts."""

    cpu_s: float
    num_answers: int

    def tell(self, report: int, num_answers: int) -> None:
        """Write what has come since."""
        os.write(report, f"{num_answers - self.num_answers} {cpu_s() - self.cpu_s}".encode())


def serve_floor(folder: Path, report: int) -> None:
    """Answer without looking, until SIGTERM."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(f"{folder}/dynolog")
    answer, num_answers = pack_reply(""), 0
    began = Mark(cpu_s(), 0)

    def stop(*_: object) -> None:
        raise SystemExit

    def begin_anew(*_: object) -> None:
        nonlocal began
        began = Mark(cpu_s(), num_answers)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, begin_anew)
    os.write(report, b"r")
    try:
        while True:
            _, client = listening.recvfrom(4096)
            listening.sendto(answer, socket.MSG_DONTWAIT, client)
            num_answers += 1
    finally:
        began.tell(report, num_answers)


def serve_agent(folder: Path, report: int) -> None:
    """Answer as the agent does, until SIGTERM."""
    from whystuck.agent.ondemand.tracer import OnDemandTracer
    from whystuck.agent.poll_batcher import NoteLater
    from whystuck.agent.processes.registrations import TellRegistrations
    from whystuck.agent.processes.registry import ProcessRegistry

    async def serve() -> None:
        ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, ending.set)
        registry = ProcessRegistry()
        tracer = OnDemandTracer(registry)
        handler = NoteLater(TellRegistrations(tracer), lambda: tracer.is_idle)
        registry.before_read = handler.flush
        endpoint = FabricEndpoint(handler, PathAddress(folder), repeat=handler.repeat)
        endpoint.start()
        counts = endpoint.counts
        began = Mark(cpu_s(), 0)

        def begin_anew() -> None:
            nonlocal began
            began = Mark(cpu_s(), counts.polls)

        loop.add_signal_handler(signal.SIGUSR1, begin_anew)
        os.write(report, b"r")
        await ending.wait()
        wrong = counts.garbage + counts.foreign + counts.misplaced + counts.failed
        if wrong or not registry.list_all():
            print(f"not as it should be: {counts}", file=sys.stderr)
        began.tell(report, counts.polls)
        endpoint.close()
        registry.close()

    asyncio.run(serve())


def ask(folder: Path, number: int, pause_s: float) -> None:
    """Send requests, each after the answer to the one before, until SIGTERM.

    With a pause an answer is waited for as long as Kineto does.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.bind(f"{folder}/dynoconfigclient-{number}")
    request = pack_request(3, 0, (os.getpid(), os.getppid()))
    server = f"{folder}/dynolog"
    client.settimeout(0.09 if pause_s else 5)
    while True:
        try:
            client.sendto(request, server)
            client.recv(4096)
        except TimeoutError:
            pass  # this machine is busy
        except OSError:
            return  # the server has ended
        if pause_s:
            time.sleep(pause_s)


def measure(serve: Serve, num_processes: int, seconds: float, pause_s: float = 0.0) -> Result:
    """Run one server with so many clients."""
    with tempfile.TemporaryDirectory(prefix="ws", dir="/tmp") as name:
        folder = Path(name)
        reading, writing = os.pipe()
        server = fork(partial(serve, folder, writing))
        os.read(reading, 1)
        clients = [fork(partial(ask, folder, number, pause_s)) for number in range(num_processes)]
        if pause_s:  # what it costs to learn who they are comes once
            time.sleep(3 * pause_s)
            os.kill(server, signal.SIGUSR1)
        began_s = time.monotonic()
        time.sleep(seconds)
        os.kill(server, signal.SIGTERM)
        took_s = time.monotonic() - began_s
        answers, used_s = os.read(reading, 100).split()
        for pid in clients:
            os.kill(pid, signal.SIGTERM)
        for pid in [server, *clients]:
            os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    num, cpu = int(answers), float(used_s)
    if not num or (cpu < MIN_SAMPLE_S and not pause_s):
        raise SystemExit(f"too little was measured: {num} answers in {cpu} s of CPU time")
    return Result(num / took_s, num / cpu, 1e6 * cpu / num)


def fork(run: Callable[[], None]) -> int:
    """Return the pid of a child that runs a function and ends; its memory is ours."""
    pid = os.fork()
    if pid:
        return pid
    try:
        run()
    except SystemExit:
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - a child must never run on as its parent
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


def cpu_s() -> float:
    """Return the CPU time of this process, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5, help="of each server, in turns")
    parser.add_argument("--quick", action="store_true", help="some seconds in all")
    options = parser.parse_args()
    seconds, runs = (1.0, 3) if options.quick else (options.seconds, options.runs)
    results: dict[str, list[Result]] = {"floor": [], "agent": []}
    for _ in range(runs):
        results["floor"].append(measure(serve_floor, options.processes, seconds))
        results["agent"].append(measure(serve_agent, options.processes, seconds))
    print(f"{options.processes} processes, {runs} runs of {seconds:g} s; medians\n")
    print(f"{'':8}{'requests/s':>12}{'a CPU second':>14}{'µs of CPU each':>16}")
    medians = {}
    for name, measured in results.items():
        one = Result(*map(statistics.median, zip(*measured, strict=True)))
        medians[name] = one
        print(f"{name:8}{one.per_s:12,.0f}{one.per_cpu_s:14,.0f}{one.cpu_us:16.1f}")
    print(f"\nratio to the floor: {medians['agent'].cpu_us / medians['floor'].cpu_us:.2f}")
    idle_s = 5.0 if options.quick else 20.0
    for name, serve in (("floor", serve_floor), ("agent", serve_agent)):
        idle = measure(serve, options.processes, idle_s, pause_s=1.0)
        share_percent = 100 * idle.per_s * idle.cpu_us / 1e6
        each = f"{idle.cpu_us:.0f} µs each"
        print(f"{name}, polled once a second by all: {share_percent:.3f} % of a core, {each}")
    is_met = medians["agent"].per_cpu_s >= BAR_PER_S
    print(f"bar: {BAR_PER_S:,} requests/s on one core: {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
