"""Traces of made-up jobs: hosts that launch, devices that work through streams, collectives.

A program is a generator that drives one `Rank` and yields at each collective what it moves; all
ranks run side by side, and a collective ends on all of them when the last one has come. What comes
out is the JSON that Kineto writes, so that readers and metrics see what they see in real traces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE_NS = 1_767_189_312_000_000_000
_LAUNCH_US = 4.0
_START_US = 2.0
_THREAD = 4711


@dataclass(frozen=True)
class Collective:
    """What all ranks do together: the device of each comes to it at `arrival_us`."""

    op: str
    size: int
    transfer_us: float
    event: dict[str, Any]
    arrival_us: float


Program = Callable[["Rank"], Generator[Collective, float, None]]


@dataclass
class Rank:
    """One rank: its host is at `now`, and `free` tells when each stream of its device is."""

    rank: int
    world_size: int = 1
    device: int = 0
    with_stack: bool = False
    now: float = 1000.0
    free: dict[int, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 100
    sequence: int = 0

    def host(self, us: float) -> None:
        """Time of the host that nothing in the trace tells of."""
        self.now += us

    @contextmanager
    def span(self, category: str, name: str, **args: Any) -> Iterator[None]:
        """An event of the host around what is done within."""
        start = self.now
        event = self._add(category, name, start, 0.0, pid=_THREAD, tid=_THREAD, **args)
        yield
        event["dur"] = self.now - start

    @contextmanager
    def step(self, number: int, line: int = 40) -> Iterator[None]:
        """A step of the profiler."""
        with self.span("user_annotation", f"ProfilerStep#{number}"):
            if self.with_stack:
                with self.span("python_function", f"/home/ann/train.py({line}): train_step"):
                    yield
            else:
                yield

    def op(self, name: str, us: float = 6.0) -> None:
        """An op that stays on the host."""
        with self.span("cpu_op", name):
            self.host(us)

    def load(self, us: float, name: str = "_MultiProcessingDataLoaderIter.__next__") -> None:
        """Wait for a batch."""
        with self.span("user_annotation", f"enumerate(DataLoader)#{name}"):
            self.host(us)

    def compile(self, us: float) -> None:
        """Compile a graph, as torch 2.8 and later mark it."""
        with (
            self.span("cpu_op", "_compile.compile_inner (dynamo_timed)"),
            self.span("cpu_op", "entire_frame_compile (dynamo_timed)"),
        ):
            self.host(us)

    def launch(
        self,
        kernel: str,
        us: float,
        *,
        op: str = "aten::mm",
        stream: int = 7,
        after: int | None = None,
        op_us: float = 3.0,
    ) -> None:
        """Launch a kernel from an op; it starts when its stream, and that of `after`, is free."""
        with self.span("cpu_op", op, **{"External id": self.correlation}):
            self.host(op_us)
            correlation = self._call("cudaLaunchKernel", _LAUNCH_US)
        self._run("kernel", kernel, us, correlation, stream, after=after)

    def copy(
        self, kind: str, size: int, gbps: float, *, pageable: bool, blocks: bool = False
    ) -> None:
        """Copy between host and device; `kind` is `HtoD` or `DtoH`."""
        us = size / gbps / 1e3
        memory = "Pageable" if pageable else "Pinned"
        ends = (memory, "Device") if kind == "HtoD" else ("Device", memory)
        with self.span("cpu_op", "aten::copy_"):
            correlation = self._call("cudaMemcpyAsync", _LAUNCH_US)
            name = f"Memcpy {kind} ({ends[0]} -> {ends[1]})"
            self._run("gpu_memcpy", name, us, correlation, 7, bytes=size)
            if blocks:
                self._wait("cudaStreamSynchronize")

    def item(self) -> None:
        """Read a value of the device, as `loss.item()` does."""
        with self.span("cpu_op", "aten::item"), self.span("cpu_op", "aten::_local_scalar_dense"):
            correlation = self._call("cudaMemcpyAsync", _LAUNCH_US)
            name = "Memcpy DtoH (Device -> Pageable)"
            self._run("gpu_memcpy", name, 1.5, correlation, 7, bytes=4)
            self._wait("cudaStreamSynchronize")

    def synchronize(self) -> None:
        """Wait for the whole device, as `torch.cuda.synchronize()` does."""
        self._wait("cudaDeviceSynchronize")

    def collective(
        self,
        op: str,
        size: int,
        transfer_us: float,
        *,
        stream: int = 20,
        after: int | None = 7,
    ) -> Collective:
        """Launch a collective on a stream of its own; to be yielded."""
        with self.span("user_annotation", f"nccl:{op}"), self.span("cpu_op", "record_param_comms"):
            correlation = self._call("cudaLaunchKernelExC", _LAUNCH_US)
        ranks = json.dumps(list(range(self.world_size)))
        event = self._run(
            "kernel",
            f"ncclDevKernel_{op}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            0.0,
            correlation,
            stream,
            after=after,
            **{
                "Collective name": op,
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
                "Process Group Ranks": ranks,
                "Group size": self.world_size,
                "dtype": "BFloat16",
                "In msg nelems": size // 2,
                "Out msg nelems": size // 2,
                "Seq": self.sequence,
            },
        )
        self.sequence += 1
        return Collective(op, size, transfer_us, event, event["ts"])

    def wait_for(self, stream: int, other: int) -> None:
        """Have a stream of the device wait for another one."""
        self.free[stream] = max(self.free.get(stream, 0.0), self.free.get(other, 0.0))

    def _call(self, name: str, us: float) -> int:
        self.correlation += 1
        args = {"correlation": self.correlation, "cbid": 211}
        self._add("cuda_runtime", name, self.now, us, pid=_THREAD, tid=_THREAD, **args)
        self.now += us
        return self.correlation

    def _wait(self, name: str) -> None:
        done = max([self.now, *self.free.values()]) + 1.0
        self.correlation += 1
        args = {"correlation": self.correlation, "cbid": 131}
        us = done - self.now
        self._add("cuda_runtime", name, self.now, us, pid=_THREAD, tid=_THREAD, **args)
        self.now = done

    def _run(
        self,
        category: str,
        name: str,
        us: float,
        correlation: int,
        stream: int,
        after: int | None = None,
        **args: Any,
    ) -> dict[str, Any]:
        start = max(self.now + _START_US, self.free.get(stream, 0.0))
        if after is not None:
            start = max(start, self.free.get(after, 0.0))
        self.free[stream] = start + us
        more = {"device": self.device, "stream": stream, "correlation": correlation, **args}
        return self._add(category, name, start, us, pid=self.device, tid=stream, **more)

    def _add(
        self, category: str, name: str, start: float, us: float, *, pid: int, tid: int, **args: Any
    ) -> dict[str, Any]:
        shape = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        event = {**shape, "ts": start, "dur": us, "args": args}
        self.events.append(event)
        return event


def run_job(program: Program, world_size: int = 1, **options: Any) -> list[Rank]:
    """Run a program on all ranks side by side.

    Args:
        program: What each rank does.
        world_size: How many there are.
        options: Further fields of `Rank`.

    Returns:
        The ranks with their events.
    """
    ranks = [Rank(rank, world_size, **options) for rank in range(world_size)]
    running = [program(rank) for rank in ranks]
    ends: list[float | None] = [None] * world_size
    while True:
        came = [_advance(one, end) for one, end in zip(running, ends, strict=True)]
        if all(one is None for one in came):
            return ranks
        assert None not in came, "ranks make different collectives"
        ours = [one for one in came if one is not None]
        done = max(one.arrival_us for one in ours) + ours[0].transfer_us
        for rank, one in zip(ranks, ours, strict=True):
            one.event["dur"] = done - one.arrival_us
            rank.free[one.event["tid"]] = done
        ends = [done] * world_size


def _advance(program: Generator[Collective, float, None], end: float | None) -> Collective | None:
    try:
        return next(program) if end is None else program.send(end)
    except StopIteration:
        return None


def to_json(rank: Rank, *, offset_us: float = 0.0) -> dict[str, Any]:
    """The trace of a rank as Kineto writes it; `offset_us` is by how much its clock is ahead."""
    events = [
        {**event, "ts": round(event["ts"] + offset_us, 3), "dur": round(event["dur"], 3)}
        for event in sorted(rank.events, key=lambda event: float(event["ts"]))
    ]
    members = list(range(rank.world_size))
    # Without a device on the host, none is listed.
    has_device = any(event["cat"] == "kernel" for event in events)
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}
    devices = [device] if has_device else []
    return {
        "schemaVersion": 1,
        "deviceProperties": devices,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank.rank,
            "world_size": rank.world_size,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "ranks": members,
                    "pg_size": rank.world_size,
                }
            ],
        },
        "baseTimeNanoseconds": BASE_NS,
        "traceName": f"rank{rank.rank}.json",
        "traceEvents": events,
    }


def write_job(folder: Path, ranks: list[Rank], offsets_us: dict[int, float] | None = None) -> None:
    """Write the traces of a job into a folder, a file a rank."""
    for rank in ranks:
        made = to_json(rank, offset_us=(offsets_us or {}).get(rank.rank, 0.0))
        (folder / f"rank{rank.rank}.json").write_text(json.dumps(made))
