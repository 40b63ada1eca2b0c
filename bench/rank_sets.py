"""Writes traces of a made-up job of any size, with ranks that are late by a known amount.

The job is simulated: ranks are laid out as TP x PP x DP with TP fastest, and wait for each other in
collectives as on real devices. What each rank then has in its trace is written as Kineto does. What
is true of the job goes into ``truth.json``-like text beside the traces. A file has the
events of its own rank, and filler that is packed once for all ranks, so that 1,024 ranks of 20 MB
take a minute.

    python bench/rank_sets.py make DIR --ranks 1024 --megabytes 20 --tp 8 --late 517:3000
    python bench/rank_sets.py reduce --ranks 1024 --calls 10000
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankHeader, RankTables
from whystuck.tracing.collectives.matched_ops import CROSS_METRIC
from whystuck.tracing.collectives.members import write_members
from whystuck.tracing.collectives.rank_calls import CALLS, slim_calls

Whole = NDArray[np.int64]

BASE_NS = 1_790_000_000_000_000_000
TRANSFER_NS = 120_000
COMPUTE_NS = 400_000
LEAD_NS = 100_000
LAUNCH_NS = 8_000
BYTES = {"tp": 33_554_432, "dp": 134_217_728, "world": 4}
OPS = {
    "all_reduce": ("allreduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    "reduce_scatter": ("_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"),
    "all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL"),
    "all_to_all": ("all_to_all", "ncclDevKernel_SendRecv"),
    "send": ("send", "ncclDevKernel_SendRecv"),
    "recv": ("recv", "ncclDevKernel_SendRecv"),
}
TRUTH = "truth.txt"


@dataclass(frozen=True)
class Job:
    """What the job is like, and who is late in it.

    ``late_us`` says by how much ranks are late before every ``every``-th phase, because their
    host stalls or (``kind`` ``gpu``) because their kernels take longer. ``fair_us`` makes another
    rank late each time, drawn at random. ``uneven_us`` is how much longer each later stage of
    the pipeline computes. ``told`` says where the names of groups are: on the kernel, on the op of
    the host, or nowhere; ``numbered`` whether ops have numbers.
    """

    ranks: int = 8
    tp: int = 1
    pp: int = 1
    steps: int = 4
    layers: int = 4
    late_us: dict[int, float] = field(default_factory=dict)
    every: int = 1
    kind: str = "host"
    fair_us: float = 0.0
    uneven_us: float = 0.0
    jitter_us: float = 5.0
    end_jitter_us: float = 2.0
    clock_us: float = 0.0
    drift_ppm: float = 0.0
    told: str = "kernel"
    numbered: bool = True
    overlap: bool = False
    moe: bool = False
    megabytes: float = 0.0
    seed: int = 1


@dataclass(frozen=True)
class Phase:
    """Work of some ranks, and the call behind it. All arrays have a value a rank; -1: not in it."""

    op: str
    dim: str
    bytes: Whole
    compute: Whole
    compute_end: Whole
    launch: Whole
    start: Whole
    end: Whole
    group: Whole
    sequence: Whole
    peer: Whole


class Simulation:
    """Runs the job: when each rank computed, came to each call, and left it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rng = np.random.default_rng(job.seed)
        self.dp = job.ranks // (job.tp * job.pp)
        if self.dp * job.tp * job.pp != job.ranks:
            raise ValueError("ranks must be a multiple of tp x pp")
        # Axes: DP, PP, TP.
        grid = np.arange(job.ranks).reshape(self.dp, job.pp, job.tp)
        self.stage = np.zeros(job.ranks, dtype=np.int64)
        for stage in range(job.pp):
            self.stage[grid[:, stage].ravel()] = stage
        self.groups = {
            "world": grid.reshape(1, -1),
            "tp": grid.reshape(-1, job.tp),
            "dp": grid.transpose(1, 2, 0).reshape(-1, self.dp),
            "pp": grid.transpose(0, 2, 1).reshape(-1, job.pp),
        }
        names = 1
        self.first_name = {"world": 0}
        for dim in ("tp", "dp", "pp"):
            self.first_name[dim] = names
            names += len(self.groups[dim])
        self.clock = np.full(job.ranks, 2_000_000, dtype=np.int64)
        self.comm_free = np.zeros(job.ranks, dtype=np.int64)
        self.phases: list[Phase] = []
        self.steps: list[tuple[Whole, Whole]] = []
        self.counts = {dim: np.zeros(len(one), dtype=np.int64) for dim, one in self.groups.items()}
        self.turn = 0

    def run(self) -> Simulation:
        """Run all steps."""
        for _ in range(self.job.steps):
            begin = self.clock.copy()
            for stage in range(self.job.pp):
                self._run_stage(stage)
            every = np.ones(self.job.ranks, dtype=np.bool_)
            if self.dp > 1 and self.job.tp * self.job.pp > 1:
                self._meet("reduce_scatter", "dp", self._compute(every))
                self._meet("all_gather", "dp", self._compute(every))
            if self.job.overlap:
                self.clock = np.maximum(self.clock, self.comm_free)
            self._meet("all_reduce", "world", self._compute(every))
            self.clock = self.clock + 50_000
            self.steps.append((begin, self.clock.copy()))
        return self

    def _run_stage(self, stage: int) -> None:
        mine = self.stage == stage
        if stage:
            self._pass_on(stage)
        for _ in range(self.job.layers):
            if self.job.tp > 1:
                self._meet("all_reduce", "tp", self._compute(mine))
            elif self.dp > 1:
                self._meet("all_reduce", "dp", self._compute(mine))
            if self.job.moe:
                self._meet("all_to_all", "dp", self._compute(mine))

    def _compute(self, mine: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Whole, Whole, Whole]:
        """Let ranks compute; return who, from when to when, and when the next call is launched."""
        job = self.job
        count = job.ranks
        gap, longer = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        late = np.zeros(count, dtype=np.int64)
        if self.turn % job.every == 0:
            for rank, us in job.late_us.items():
                late[rank] = round(us * 1000)
        if job.fair_us:
            late[self.rng.integers(count)] += round(job.fair_us * 1000)
        if job.kind == "host":
            gap = late
        else:
            longer = late
        self.turn += 1
        jitter = np.abs(self.rng.normal(0, job.jitter_us * 1000, count)).astype(np.int64)
        took = COMPUTE_NS + jitter + longer + (job.uneven_us * 1000 * self.stage).astype(np.int64)
        start = self.clock + gap + 1_000
        end = start + took
        self.clock = np.where(mine, end, self.clock)
        return mine, start, end, end - longer - LEAD_NS

    def _meet(self, op: str, dim: str, work: tuple[NDArray[np.bool_], Whole, Whole, Whole]) -> None:
        """Let the members of the groups of a dimension meet."""
        mine, compute, compute_end, launch = work
        members = self.groups[dim]
        members = members[mine[members].all(axis=1)]
        numbers = np.flatnonzero(mine[self.groups[dim]].all(axis=1))
        blank = np.full(self.job.ranks, -1, dtype=np.int64)
        ready = np.maximum(compute_end, self.comm_free) if self.job.overlap else compute_end
        ready = ready + 2_000
        finish = blank.copy()
        sizes = np.full(self.job.ranks, BYTES[dim], dtype=np.int64)
        if op == "all_to_all":
            sizes = sizes * self.rng.integers(1, 4, self.job.ranks)
        transfer = TRANSFER_NS + BYTES[dim] // 400
        noise = self.rng.normal(0, self.job.end_jitter_us * 1000, members.shape).astype(np.int64)
        latest = ready[members].max(axis=1)
        finish[members] = np.maximum(latest[:, None] + transfer + noise, ready[members] + 1000)
        group, sequence = blank.copy(), blank.copy()
        group[members] = numbers[:, None]
        sequence[members] = self.counts[dim][numbers][:, None]
        self.counts[dim][numbers] += 1
        inside = group >= 0
        self.phases.append(
            Phase(
                op, dim, sizes, compute, compute_end, launch, ready, finish, group, sequence, blank
            )
        )
        if self.job.overlap and dim == "dp":
            self.comm_free = np.where(inside, finish, self.comm_free)
        else:
            self.clock = np.where(inside, finish, self.clock)

    def _pass_on(self, stage: int) -> None:
        """Let each rank of a stage get what the one before it made."""
        lanes = self.groups["pp"]
        source, target = lanes[:, stage - 1], lanes[:, stage]
        blank = np.full(self.job.ranks, -1, dtype=np.int64)
        meet = np.maximum(self.clock[source], self.clock[target]) + TRANSFER_NS
        for op, here, there in (("send", source, target), ("recv", target, source)):
            group, finish, peer = blank.copy(), blank.copy(), blank.copy()
            group[here], finish[here], peer[here] = np.arange(len(lanes)), meet, there
            sequence = np.where(group >= 0, self.turn, -1)
            size = np.full(self.job.ranks, 4_194_304, dtype=np.int64)
            start = self.clock + 1_000
            self.phases.append(
                Phase(
                    op,
                    "pp",
                    size,
                    blank,
                    blank,
                    start - LEAD_NS,
                    start,
                    finish,
                    group,
                    sequence,
                    peer,
                )
            )
        self.clock[source], self.clock[target] = meet, meet

    def tell_truth(self) -> dict[str, Any]:
        """What is true of the job: who was late, and what each rank cost the others."""
        caused = np.zeros(self.job.ranks)
        for phase in self.phases:
            if phase.op in {"send", "recv"}:
                continue
            for members in self.groups[phase.dim][np.unique(phase.group[phase.group >= 0])]:
                if len(members) > 1:
                    order = members[np.argsort(phase.start[members])]
                    caused[order[-1]] += phase.start[order[-1]] - phase.start[order[-2]]
        return {
            "late": sorted(self.job.late_us),
            "kind": self.job.kind,
            "wait_caused_ns": caused.astype(np.int64).tolist(),
            "clock_offset_ns": self.offsets().tolist(),
        }

    def offsets(self) -> Whole:
        """By how much the clock of each rank is wrong."""
        rng = np.random.default_rng(self.job.seed + 1)
        wide = self.job.clock_us * 1000
        return rng.uniform(-wide, wide, self.job.ranks).astype(np.int64)

    def drifts(self) -> NDArray[np.float64]:
        """How much faster than it should the clock of each rank runs."""
        rng = np.random.default_rng(self.job.seed + 2)
        return rng.uniform(-1, 1, self.job.ranks) * self.job.drift_ppm / 1e6


_EVENT = (
    '  {\n    "ph": "X", "cat": "%s", "name": "%s", "pid": %d, "tid": %d,\n'
    '    "ts": %d.%03d, "dur": %d.%03d%s\n  }'
)
_HOST, _COMPUTE_STREAM, _COMM_STREAM = 4100, 7, 20


class Writer:
    """Writes the trace of each rank."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.job = simulation, simulation.job
        self.offsets, self.drifts = simulation.offsets(), simulation.drifts()
        self.member_texts: dict[tuple[str, int], str] = {}

    def write_rank(self, rank: int, filler: str = "") -> tuple[str, str]:
        """Return the text of a trace before and behind the filler."""
        events = list(self._list_events(rank))
        head = json.dumps(self._describe(rank), indent=2).removesuffix("\n}")
        return head + ',\n  "traceEvents": [\n' + filler, ",\n".join(events) + "\n  ]\n}\n"

    def _describe(self, rank: int) -> dict[str, Any]:
        mine = []
        for dim, groups in self.simulation.groups.items():
            for number in np.flatnonzero((groups == rank).any(axis=1)).tolist():
                members = groups[number].tolist()
                if len(members) < 2:
                    continue
                name = str(self.simulation.first_name[dim] + number)
                mine.append({"pg_name": name, "pg_desc": dim, "pg_size": len(members)})
                # As torch does, in full for groups that are not large only.
                if len(members) <= 64:
                    mine[-1]["ranks"] = members
        info: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": self.job.ranks}
        if self.job.told != "none":
            info |= {"pg_count": len(mine), "pg_config": mine}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "Made Up", "numSms": 132, "warpSize": 32}],
            "distributedInfo": info,
            "baseTimeNanoseconds": BASE_NS + int(self.offsets[rank]),
        }

    def _event(
        self, rank: int, what: tuple[str, str, int, int], times: tuple[int, int], args: str = ""
    ) -> str:
        speed = 1 + float(self.drifts[rank])
        start, end = (round(one * speed) for one in times)
        text = f',\n    "args": {{\n      {args}\n    }}' if args else ""
        took = end - start
        return _EVENT % (*what, start // 1000, start % 1000, took // 1000, took % 1000, text)

    def _list_events(self, rank: int) -> list[str]:
        events = []
        for number, (begin, end) in enumerate(self.simulation.steps):
            what = ("user_annotation", f"ProfilerStep#{number}", _HOST, _HOST)
            events.append(self._event(rank, what, (int(begin[rank]), int(end[rank]))))
        for number, phase in enumerate(self.simulation.phases):
            if phase.group[rank] >= 0:
                events += self._list_phase(rank, number * 4 + 1, phase)
        return events

    def _list_phase(self, rank: int, id_: int, phase: Phase) -> list[str]:
        made = []
        compute, launch = int(phase.compute[rank]), int(phase.launch[rank])
        if compute >= 0:
            early = min(compute, launch) - 60_000
            link = f'"External id": {id_}, "correlation": {id_}'
            made += [
                self._event(
                    rank,
                    ("cpu_op", "aten::linear", _HOST, _HOST),
                    (early, early + 30_000),
                    f'"External id": {id_}',
                ),
                self._event(
                    rank,
                    ("cuda_runtime", "cudaLaunchKernel", _HOST, _HOST),
                    (early + 9_000, early + 17_000),
                    link,
                ),
                self._event(
                    rank,
                    ("kernel", "sm90_xmma_gemm_bf16", 0, _COMPUTE_STREAM),
                    (compute, int(phase.compute_end[rank])),
                    f'{link}, "device": 0, "stream": {_COMPUTE_STREAM}',
                ),
            ]
        told = self._tell(rank, phase)
        id_ += 1
        link = f'"External id": {id_}, "correlation": {id_}'
        annotation = f"nccl:{phase.op}"
        on_host = f", {told}" if self.job.told == "host" else ""
        on_kernel = f", {told}" if self.job.told == "kernel" else ""
        kernel = f'{link}, "device": 0, "stream": {_COMM_STREAM}{on_kernel}'
        made += [
            self._event(
                rank,
                ("cpu_op", "record_param_comms", _HOST, _HOST),
                (launch - 20_000, launch + 20_000),
                f'"External id": {id_}{on_host}',
            ),
            self._event(
                rank,
                ("user_annotation", annotation, _HOST, _HOST),
                (launch - 15_000, launch + 15_000),
                f'"Input Dims": [[{int(phase.bytes[rank]) // 2}]], "Input type": ["c10::BFloat16"]',
            ),
            self._event(
                rank,
                ("cuda_runtime", "cudaLaunchKernelExC", _HOST, _HOST),
                (launch, launch + LAUNCH_NS),
                link,
            ),
            self._event(
                rank,
                ("kernel", OPS[phase.op][1], 0, _COMM_STREAM),
                (int(phase.start[rank]), int(phase.end[rank])),
                kernel,
            ),
        ]
        return made

    def _tell(self, rank: int, phase: Phase) -> str:
        """What c10d says about an op."""
        number = int(phase.group[rank])
        members = self.simulation.groups[phase.dim][number]
        elements = int(phase.bytes[rank]) // 2
        share = max(elements // len(members), 1)
        given = share if phase.op == "all_gather" else elements
        got = share if phase.op == "reduce_scatter" else elements
        name = self.simulation.first_name[phase.dim] + number
        sequence = int(phase.sequence[rank])
        text = (
            f'"Collective name": "{OPS[phase.op][0]}", "In msg nelems": {given}, '
            f'"Out msg nelems": {got}, "Group size": {len(members)}, "dtype": "BFloat16", '
            f'"Process Group Name": "{name}", "Process Group Description": "{phase.dim}", '
            f'"Process Group Ranks": "{self._list_members(phase.dim, number)}"'
        )
        if self.job.numbered:
            pair = sorted((rank, int(phase.peer[rank])))
            key = f"{name} {phase.dim} {sequence} {pair if phase.peer[rank] >= 0 else ''}"
            text += f', "Seq": {sequence}, "Comms Id": {zlib.crc32(key.encode())}'
        if phase.peer[rank] >= 0:
            ends = (rank, int(phase.peer[rank]))
            source, target = ends if phase.op == "send" else ends[::-1]
            text += f', "Src Rank": {source}, "Dst Rank": {target}'
        return text

    def _list_members(self, dim: str, number: int) -> str:
        key = (dim, number)
        if key not in self.member_texts:
            members = self.simulation.groups[dim][number].tolist()
            # torch cuts the list off behind 30.
            tail = ", ..." if len(members) > 30 else ""
            self.member_texts[key] = "[" + ", ".join(map(str, members[:30])) + tail + "]"
        return self.member_texts[key]


def make_filler(megabytes: float, span_ns: int) -> str:
    """Return events of another thread of the host, as many as it takes."""
    names = [f"torch/nn/modules/module.py({line}): _call_impl" for line in range(40)]
    one = len(_EVENT) + 120
    count = int(megabytes * 1e6 / one)
    step = max(span_ns // max(count, 1), 20)
    made = []
    for number in range(count):
        start = number * step
        ids = f'"Python id": {number}, "Python parent id": {number // 2}'
        args = f',\n    "args": {{\n      {ids}\n    }}'
        made.append(
            _EVENT
            % (
                *("python_function", names[number % 40], _HOST, _HOST + 1),
                *(start // 1000, start % 1000, 0, step - 10, args),
            )
        )
    return ",\n".join(made) + ",\n" if made else ""


def make_texts(job: Job) -> tuple[list[bytes], dict[str, Any]]:
    """Return the traces of all ranks, not packed, and the truth; for small jobs."""
    simulation = Simulation(job).run()
    writer = Writer(simulation)
    texts = ["".join(writer.write_rank(rank)).encode() for rank in range(job.ranks)]
    return texts, simulation.tell_truth()


def write_set(folder: Path, job: Job) -> dict[str, Any]:
    """Write ``rank<K>.json.gz`` for each rank, and the truth as ``truth.txt``.

    Args:
        folder: Where to; made when absent.
        job: What to write.

    Returns:
        The truth.
    """
    simulation = Simulation(job).run()
    writer = Writer(simulation)
    folder.mkdir(parents=True, exist_ok=True)
    span = int(simulation.clock.max())
    # Members of a gzip file follow each other: the filler is packed once.
    filler = gzip.compress(make_filler(job.megabytes, span).encode(), 6)
    for rank in range(job.ranks):
        head, tail = writer.write_rank(rank)
        data = gzip.compress(head.encode(), 1) + filler + gzip.compress(tail.encode(), 1)
        (folder / f"rank{rank}.json.gz").write_bytes(data)
    truth = simulation.tell_truth()
    (folder / TRUTH).write_text(json.dumps(truth))
    return truth


def make_calls(ranks: int, calls: int, tp: int = 8) -> list[RankTables]:
    """Return what many ranks measured, without traces: all of a job's calls, rank 7 late."""
    rng = np.random.default_rng(1)
    period = 2_000_000
    grid = np.arange(calls, dtype=np.int64) * period
    # Of sixteen calls one is of the world, three are of data-parallel groups.
    dims = np.where(np.arange(calls) % 16 == 15, 0, np.where(np.arange(calls) % 5 == 4, 2, 1))
    meet = rng.integers(0, 50_000, (3, calls))
    made = []
    for rank in range(ranks):
        numbers = np.array([0, 1 + rank // tp, 1_000 + rank % tp], dtype=np.int64)
        sizes = np.array([ranks, tp, ranks // tp], dtype=np.int64)
        own = rng.integers(300_000, 320_000, calls) + (200_000 if rank == 7 else 0)
        start = grid + own
        end = grid + 900_000 + meet[dims, np.arange(calls)] + rng.integers(0, 4_000, calls)
        group = numbers[dims]
        sequence = np.zeros(calls, dtype=np.int64)
        for one in range(3):
            sequence[dims == one] = np.arange(int((dims == one).sum()))
        unknown = np.full(calls, -1, dtype=np.int64)
        header = RankHeader(rank=rank, world_size=ranks, base_ns=BASE_NS + rank * 1_000)
        members = [
            write_members(tuple(range(ranks))),
            write_members(tuple(range(rank // tp * tp, rank // tp * tp + tp))),
            write_members(tuple(range(rank % tp, ranks, tp))),
        ]
        columns: dict[str, Any] = {
            "device": np.zeros(calls, dtype=np.int64),
            "stream": np.full(calls, 20),
            "group_key": group + 10,
            "kind_key": dims + 1,
            "number": sequence,
            "start_ns": start,
            "end_ns": end,
            "launch_ns": start - LEAD_NS,
            "own_ns": own,
            "own_compute_ns": own,
            "exposed_ns": end - start,
            "bytes": np.full(calls, 1 << 20),
            "sequence": sequence,
            "group_size": sizes[dims],
            "group": text_column([str(one) for one in numbers.tolist()])[dims],
            "members": text_column(members)[dims],
            "group_desc": text_column(["world", "tp", "dp"])[dims],
            "op": text_column(["all_reduce"])[unknown + 1],
            "dtype": text_column(["BFloat16"])[unknown + 1],
        }
        made.append(slim_calls(RankTables(header, {CALLS: Table(columns)})))
    return made


def measure_reduce(ranks: int, calls: int) -> None:
    """Print what it costs to compare the collectives of many ranks."""
    tables = make_calls(ranks, calls)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.process_time()
    found = CROSS_METRIC.measure(tables, TraceOptions())
    took = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{ranks} ranks x {calls} collectives: {took:.1f} s CPU, {before:.0f} MB held, "
        f"{peak:.0f} MB at most, {len(found['collectives'])} collectives, "
        f"late: {found['straggler']['rank'].tolist()}"
    )


def main() -> None:
    """Write a set, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="write traces")
    make.add_argument("folder", type=Path)
    for name, default in (("ranks", 8), ("tp", 1), ("pp", 1), ("steps", 4), ("layers", 4)):
        make.add_argument(f"--{name}", type=int, default=default)
    for name in ("megabytes", "clock-us", "fair-us", "drift-ppm"):
        make.add_argument(f"--{name}", type=float, default=0.0)
    make.add_argument("--late", action="append", default=[], help="RANK:US")
    make.add_argument("--every", type=int, default=1)
    make.add_argument("--kind", choices=("host", "gpu"), default="host")
    make.add_argument("--told", choices=("kernel", "host", "none"), default="kernel")
    make.add_argument("--not-numbered", action="store_false", dest="numbered")
    make.add_argument("--overlap", action="store_true")
    reduce = commands.add_parser("reduce", help="measure the comparison of ranks")
    reduce.add_argument("--ranks", type=int, default=1024)
    reduce.add_argument("--calls", type=int, default=10_000)
    chosen = vars(parser.parse_args())
    if chosen.pop("command") == "reduce":
        measure_reduce(**chosen)
        return
    folder = chosen.pop("folder")
    late = (one.split(":") for one in chosen.pop("late"))
    began = time.monotonic()
    write_set(folder, Job(**chosen, late_us={int(rank): float(us) for rank, us in late}))
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(f"{chosen['ranks']} ranks, {size:.0f} MB packed, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
