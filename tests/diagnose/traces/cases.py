"""Jobs with a known cost, and jobs that look like them and are well."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from tests.tracing.build import Collective, Program, Rank

Run = Generator[Collective, float, None]
LAYERS = 40
STEPS = range(3, 9)


def layers(rank: Rank, us: float = 300.0, number: int = LAYERS, op_us: float = 3.0) -> None:
    """The kernels of a model, large enough to keep a device busy."""
    for _ in range(number):
        rank.launch("ampere_bf16_gemm_128x128", us, op_us=op_us)


def healthy(rank: Rank) -> Run:
    """Reduces under the backward pass, reads the loss once a step."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            layers(rank)
            yield rank.collective("allreduce", 64 << 20, 900.0)
            layers(rank)
            rank.wait_for(7, 20)
            layers(rank, us=80.0)
            rank.item()


def slow_input(rank: Rank) -> Run:
    for number in STEPS:
        with rank.step(number):
            rank.load(5000.0)
            layers(rank)
            yield rank.collective("allreduce", 4 << 20, 100.0)
            rank.wait_for(7, 20)
            rank.item()


def hidden_input(rank: Rank) -> Run:
    """The loader is slow, while the device has enough to do."""
    for number in STEPS:
        with rank.step(number):
            layers(rank)
            yield rank.collective("allreduce", 4 << 20, 100.0)
            rank.wait_for(7, 20)
            rank.load(5000.0)
            rank.item()


def slow_input_of_rank_2(rank: Rank) -> Run:
    for number in STEPS:
        with rank.step(number):
            rank.load(6000.0 if rank.rank == 2 else 30.0)
            layers(rank)
            yield rank.collective("allreduce", 4 << 20, 100.0)
            rank.wait_for(7, 20)
            rank.item()


def sync_before_input(rank: Rank) -> Run:
    """The sync only shows that input is late: without it, the device would wait all the same."""
    for number in STEPS:
        with rank.step(number):
            layers(rank)
            yield rank.collective("allreduce", 4 << 20, 100.0)
            rank.wait_for(7, 20)
            rank.item()
            rank.load(5000.0)


def small_kernels_late(rank: Rank) -> Run:
    """Python takes longer than the device."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            for _ in range(300):
                rank.launch("vectorized_elementwise_kernel", 12.0, op="aten::mul", op_us=25.0)
            yield rank.collective("allreduce", 1 << 20, 40.0)
            rank.wait_for(7, 20)
            rank.item()


def short_kernels(rank: Rank) -> Run:
    """The host keeps up with kernels that are too short."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            layers(rank, number=10)
            for _ in range(400):
                rank.launch("vectorized_elementwise_kernel", 8.0, op="aten::add", op_us=1.0)
            yield rank.collective("allreduce", 1 << 20, 40.0)
            rank.wait_for(7, 20)
            rank.item()


def few_short_kernels(rank: Rank) -> Run:
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            layers(rank)
            for _ in range(120):
                rank.launch("vectorized_elementwise_kernel", 6.0, op="aten::add", op_us=1.0)
            yield rank.collective("allreduce", 1 << 20, 40.0)
            rank.wait_for(7, 20)
            rank.item()


def exposed_comm(rank: Rank) -> Run:
    """Nothing is left to compute when the gradients are reduced."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            layers(rank)
            yield rank.collective("allreduce", 256 << 20, 6000.0)
            rank.wait_for(7, 20)
            rank.item()


def hidden_comm(rank: Rank) -> Run:
    """As long, and under the computation."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            layers(rank, number=10)
            yield rank.collective("allreduce", 256 << 20, 6000.0)
            layers(rank)
            rank.wait_for(7, 20)
            rank.item()


def reduce_often(rank: Rank, work: Callable[[Rank, int], None]) -> Run:
    """Four collectives in each step; `work` comes before each."""
    call = 0
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            for _ in range(4):
                work(rank, call)
                yield rank.collective("allreduce", 16 << 20, 200.0)
                rank.wait_for(7, 20)
                call += 1
            rank.item()


def late_host_of_rank_3(rank: Rank) -> Run:
    def work(rank: Rank, _: int) -> None:
        layers(rank, number=10)
        rank.host(4500.0 if rank.rank == 3 else 0.0)

    yield from reduce_often(rank, work)


def late_device_of_rank_1(rank: Rank) -> Run:
    def work(rank: Rank, _: int) -> None:
        layers(rank, us=360.0 if rank.rank == 1 else 300.0, number=10)

    yield from reduce_often(rank, work)


def jitter(rank: Rank) -> Run:
    """Everybody is late now and then, by up to a fifth of the work."""
    chance = random.Random(rank.rank)

    def work(rank: Rank, _: int) -> None:
        layers(rank, us=300.0 + chance.uniform(0.0, 12.0), number=10)

    yield from reduce_often(rank, work)


def rotating_load(rank: Rank) -> Run:
    """Another rank has the long sequences each time."""

    def work(rank: Rank, call: int) -> None:
        has_more = rank.rank == call * 7 % 5 % rank.world_size
        layers(rank, us=600.0 if has_more else 300.0, number=10)

    yield from reduce_often(rank, work)


def sync_often(rank: Rank) -> Run:
    """Reads a value after each layer, and works on the host before the next."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            for _ in range(20):
                layers(rank, number=1)
                rank.item()
                rank.host(120.0)
            yield rank.collective("allreduce", 1 << 20, 40.0)
            rank.wait_for(7, 20)


def sync_once(rank: Rank) -> Run:
    """Measures the time of each step with a sync."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            layers(rank)
            yield rank.collective("allreduce", 1 << 20, 40.0)
            rank.wait_for(7, 20)
            rank.synchronize()
            rank.host(60.0)


def copies(rank: Rank, size: int, *, pageable: bool, gbps: float) -> Run:
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            rank.copy("HtoD", size, gbps, pageable=pageable, blocks=pageable)
            layers(rank)
            yield rank.collective("allreduce", 1 << 20, 40.0)
            rank.wait_for(7, 20)
            rank.item()


def pageable(rank: Rank) -> Run:
    return copies(rank, 16 << 20, pageable=True, gbps=4.0)


def pinned(rank: Rank) -> Run:
    return copies(rank, 96 << 20, pageable=False, gbps=24.0)


def small_pageable(rank: Rank) -> Run:
    return copies(rank, 100_000, pageable=True, gbps=4.0)


def compiles(rank: Rank, numbers: range, steps: set[int]) -> Run:
    for number in numbers:
        with rank.step(number):
            rank.load(30.0)
            if number in steps:
                rank.compile(20_000.0)
            layers(rank)
            yield rank.collective("allreduce", 1 << 20, 40.0)
            rank.wait_for(7, 20)
            rank.item()


def recompiles(rank: Rank) -> Run:
    return compiles(rank, STEPS, {4, 6, 7})


def compiles_first(rank: Rank) -> Run:
    return compiles(rank, STEPS, {3})


def compiles_at_start(rank: Rank) -> Run:
    return compiles(rank, range(6), {0, 1})


def host_job(rank: Rank, load_us: float) -> Run:
    """A job without devices."""
    for number in STEPS:
        with rank.step(number):
            rank.load(load_us)
            for _ in range(20):
                rank.op("aten::addmm", 400.0)
    yield from ()


def slow_input_of_hosts(rank: Rank) -> Run:
    return host_job(rank, 5000.0)


def busy_hosts(rank: Rank) -> Run:
    return host_job(rank, 50.0)


def no_steps(rank: Rank) -> Run:
    """Late launches in a trace without steps."""
    for _ in range(2000):
        rank.launch("vectorized_elementwise_kernel", 12.0, op="aten::mul", op_us=30.0)
    yield from ()


def ahead(rank: Rank, transfer_us: float) -> Run:
    """Nothing waits for the device: the host is through long before it."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            layers(rank)
            yield rank.collective("allreduce", 256 << 20, transfer_us)
            rank.wait_for(7, 20)


def healthy_ahead(rank: Rank) -> Run:
    return ahead(rank, 300.0)


def exposed_comm_ahead(rank: Rank) -> Run:
    return ahead(rank, 6000.0)


def late_ranks_2_and_5(rank: Rank) -> Run:
    def work(rank: Rank, _: int) -> None:
        layers(rank, us=390.0 if rank.rank in (2, 5) else 300.0, number=10)

    yield from reduce_often(rank, work)


def hidden_late_rank(rank: Rank) -> Run:
    """A rank is late, and the others compute meanwhile."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            for _ in range(4):
                layers(rank, us=310.0 if rank.rank == 1 else 300.0, number=10)
                yield rank.collective("allreduce", 16 << 20, 200.0)
            layers(rank, us=310.0 if rank.rank == 1 else 300.0, number=10)
            rank.wait_for(7, 20)
            rank.item()


def one_stop(rank: Rank) -> Run:
    """A rank stops once, for whatever reason."""

    def work(rank: Rank, call: int) -> None:
        layers(rank, us=300.0, number=10)
        rank.host(9000.0 if rank.rank == 2 and call == 9 else 0.0)

    yield from reduce_often(rank, work)


def sync_when_late_anyway(rank: Rank) -> Run:
    """The host is late for each kernel; that it reads a value now and then is not why."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            for turn in range(400):
                rank.launch("vectorized_elementwise_kernel", 12.0, op="aten::mul", op_us=30.0)
                if turn % 50 == 0:
                    rank.item()
            yield rank.collective("allreduce", 1 << 20, 40.0)
            rank.wait_for(7, 20)


def slow_first_step(rank: Rank) -> Run:
    """The first step compiles, warms up and waits for workers."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            if number == STEPS[0]:
                rank.compile(40_000.0)
            layers(rank)
            yield rank.collective("allreduce", 4 << 20, 100.0)
            layers(rank)
            rank.wait_for(7, 20)
            rank.item()


def two_causes(rank: Rank) -> Run:
    """Waits for data, and communicates in the open."""
    for number in STEPS:
        with rank.step(number):
            rank.load(8000.0)
            layers(rank)
            yield rank.collective("allreduce", 256 << 20, 6000.0)
            rank.wait_for(7, 20)
            rank.item()


def recompiles_on_rank_2(rank: Rank) -> Run:
    return compiles(rank, STEPS, {4, 6, 7} if rank.rank == 2 else set())


def sync_often_on_rank_0(rank: Rank) -> Run:
    """Rank 0 logs every layer; all wait for it at the end of the step."""
    for number in STEPS:
        with rank.step(number):
            rank.load(30.0)
            for _ in range(20):
                layers(rank, number=1)
                if rank.rank == 0:
                    rank.item()
                    rank.host(150.0)
            yield rank.collective("allreduce", 1 << 20, 40.0)
            rank.wait_for(7, 20)


def slow_host_of_rank_3(rank: Rank) -> Run:
    """The processor of one rank is slow, so that it launches late."""

    def work(rank: Rank, _: int) -> None:
        layers(rank, us=60.0, number=40, op_us=90.0 if rank.rank == 3 else 20.0)

    yield from reduce_often(rank, work)


def accumulates(rank: Rank) -> Run:
    """Gradients are reduced in every fourth step only."""
    for number in range(3, 20):
        with rank.step(number):
            rank.load(30.0)
            layers(rank)
            if number % 4 == 0:
                yield rank.collective("allreduce", 64 << 20, 2000.0)
                rank.wait_for(7, 20)
            rank.item()


def late_few_collectives(rank: Rank) -> Run:
    """Rank 1 is late to all of five collectives, by 70 ms; nothing marks steps."""
    for _ in range(5):
        layers(rank)
        rank.host(70_000.0 if rank.rank == 1 else 0.0)
        yield rank.collective("allreduce", 4 << 20, 100.0)
        rank.wait_for(7, 20)
        rank.item()


def waits_for_each_other(rank: Rank) -> Run:
    """Another rank is the last of each of four collectives, rank 2 of two; nothing marks steps."""
    for late, us in ((2, 60_000.0), (0, 20_000.0), (2, 10_000.0), (1, 30_000.0)):
        layers(rank)
        rank.host(us if rank.rank == late else 0.0)
        yield rank.collective("allreduce", 4 << 20, 100.0)
        rank.wait_for(7, 20)
        rank.item()


def optimizes(rank: Rank, work: Callable[[Rank, int], Run], steps: int = 5) -> Run:
    """A job that only its optimizer marks, as in a trace on demand."""
    for number in range(steps):
        rank.load(30.0)
        yield from work(rank, number)
        with rank.span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0"):
            layers(rank, number=4)
        with rank.span("user_annotation", "Optimizer.step#AdamW.step"):
            layers(rank, us=40.0, number=2)


def exposed_comm_of_optimizer_steps(rank: Rank) -> Run:
    def work(rank: Rank, _: int) -> Run:
        layers(rank)
        yield rank.collective("allreduce", 256 << 20, 9000.0)
        rank.wait_for(7, 20)

    yield from optimizes(rank, work)


def late_rank_of_optimizer_steps(rank: Rank) -> Run:
    def work(rank: Rank, _: int) -> Run:
        layers(rank)
        rank.host(70_000.0 if rank.rank == 1 else 0.0)
        yield rank.collective("allreduce", 4 << 20, 100.0)
        rank.wait_for(7, 20)
        rank.item()

    yield from optimizes(rank, work)


@dataclass(frozen=True)
class Case:
    """A job, and what must be said of it.

    ``warned`` are the codes of all warnings, the first finding first, with the ranks they name;
    ``noted`` may be there as notes. ``shares`` are the shares of the step, about.
    """

    name: str
    program: Program
    warned: dict[str, list[int]] = field(default_factory=dict)
    noted: frozenset[str] = frozenset()
    shares: dict[str, float] = field(default_factory=dict)
    world_size: int = 4
    verdict: str = ""
    offsets_us: dict[int, float] = field(default_factory=dict)
    with_stack: bool = False


CASES = (
    Case("healthy", healthy, verdict="healthy"),
    Case("healthy-alone", healthy, world_size=1, verdict="healthy"),
    Case("healthy-many", healthy, world_size=12, verdict="healthy"),
    Case("slow-input", slow_input, {"P501": []}, shares={"P501": 0.29}),
    Case("hidden-input", hidden_input, verdict="healthy"),
    Case("slow-input-of-one", slow_input_of_rank_2, {"P501": [2], "P504": [2]}),
    Case("sync-before-input", sync_before_input, {"P501": []}, shares={"P501": 0.29}),
    Case("late-launches", small_kernels_late, {"P502": []}, shares={"P502": 0.6}, world_size=2),
    Case("short-kernels", short_kernels, {"P505": []}, shares={"P505": 0.51}, world_size=1),
    Case("few-short-kernels", few_short_kernels, verdict="healthy"),
    Case("exposed-comm", exposed_comm, {"P503": []}, shares={"P503": 0.33}),
    Case("exposed-comm-alone", exposed_comm, {"P503": []}, shares={"P503": 0.33}, world_size=1),
    Case("hidden-comm", hidden_comm, verdict="healthy"),
    Case("late-host", late_host_of_rank_3, {"P504": [3]}, noted=frozenset({"P503"})),
    Case("late-device", late_device_of_rank_1, {"P504": [1]}, noted=frozenset({"P503"})),
    Case(
        "late-device-clocks",
        late_device_of_rank_1,
        {"P504": [1]},
        noted=frozenset({"P503"}),
        offsets_us={0: 1e6, 1: -3e5, 2: 777.0, 3: 4e5},
    ),
    Case("jitter", jitter, noted=frozenset({"P503"}), verdict="healthy"),
    Case("rotating-load", rotating_load, {"P503": []}, world_size=5),
    Case("sync-often", sync_often, {"P506": []}, shares={"P506": 0.29}),
    Case("sync-often-with-stacks", sync_often, {"P506": []}, with_stack=True),
    Case("sync-once", sync_once, verdict="healthy"),
    Case("pageable", pageable, {"P507": []}, shares={"P507": 0.26}),
    Case("pinned", pinned, verdict="healthy"),
    Case("small-pageable", small_pageable, verdict="healthy"),
    Case("healthy-ahead", healthy_ahead, verdict="healthy"),
    Case("exposed-comm-ahead", exposed_comm_ahead, {"P503": []}, shares={"P503": 0.33}),
    Case("two-late", late_ranks_2_and_5, {"P504": [2, 5]}, noted=frozenset({"P503"}), world_size=8),
    Case("hidden-late", hidden_late_rank, noted=frozenset({"P503", "P504"}), verdict="healthy"),
    Case("one-stop", one_stop, noted=frozenset({"P503"}), verdict="healthy"),
    Case(
        "late-anyway", sync_when_late_anyway, {"P502": []}, noted=frozenset({"P506"}), world_size=1
    ),
    Case("slow-first-step", slow_first_step, noted=frozenset({"P503"}), verdict="healthy"),
    Case(
        "recompiles-of-one", recompiles_on_rank_2, {"P508": [2]}, noted=frozenset({"P503", "P504"})
    ),
    Case("sync-of-one", sync_often_on_rank_0, {"P506": [0], "P504": [0]}),
    Case("slow-host-of-one", slow_host_of_rank_3, {"P504": [3]}, noted=frozenset({"P503"})),
    Case("accumulates", accumulates, noted=frozenset({"P503"}), verdict="healthy"),
    Case("two-causes", two_causes, {"P501": [], "P503": []}, shares={"P501": 0.3, "P503": 0.23}),
    Case("recompiles", recompiles, {"P508": []}, shares={"P508": 0.5}),
    Case("compiles-first", compiles_first, verdict="healthy"),
    Case("compiles-at-start", compiles_at_start, verdict="healthy"),
    Case("slow-input-of-hosts", slow_input_of_hosts, {"P501": []}, shares={"P501": 0.38}),
    Case("busy-hosts", busy_hosts, verdict="inconclusive"),
    Case("no-steps", no_steps, {"P502": []}, world_size=1),
    Case("late-few", late_few_collectives, {"P504": [1]}),
    Case("late-few-of-two", late_few_collectives, {"P504": [1]}, world_size=2),
    Case("waits-for-each-other", waits_for_each_other, {"P502": [1, 2], "P503": []}),
    Case(
        "exposed-comm-of-optimizer-steps",
        exposed_comm_of_optimizer_steps,
        {"P503": []},
        shares={"P503": 0.4},
    ),
    Case("late-rank-of-optimizer-steps", late_rank_of_optimizer_steps, {"P504": [1]}),
)
