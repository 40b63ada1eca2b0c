"""Seeded jobs with one fault each, whose hosts run ahead: what is true, and what is said."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.diagnose.queues import MS, Groups, Op, Program, Queues, unroll

from whystuck.evidence.finding import Confidence, Finding, Report
from whystuck.pipeline import diagnose_paths

Layout = tuple[Groups, dict[int, list[Op]]]
_LAST_STEPS, _SLOW_STEPS = 14, 60
_EXTRA_LINE, _STEP_LINE = 77, 40
ALL_REDUCE, GATHER, SCATTER = "all_reduce", "_all_gather_base", "_reduce_scatter_base"


@dataclass(frozen=True)
class Case:
    """A job, and what a true verdict names: the ranks, by one of some codes.

    No codes: nothing may be named. ``when_ns`` gives the time of each dump of a job that goes on.
    """

    job: Queues
    ranks: frozenset[int] = frozenset()
    codes: tuple[str, ...] = ()
    when_ns: Mapping[int, int] | None = None


def plain(rng: random.Random) -> Layout:
    """Make a data-parallel job: some buckets, and a metric."""
    world = rng.choice([2, 4, 8])
    size = rng.choice([0, 100])
    ops = [
        Op("0", ALL_REDUCE, 1000 + size * number, 20 + (size and number))
        for number in range(rng.randint(1, 4))
    ]
    ops.append(Op("0", ALL_REDUCE, 1, _STEP_LINE))
    return {"0": ("default_pg", tuple(range(world)))}, dict.fromkeys(range(world), ops)


def sharded(rng: random.Random) -> Layout:
    """Make a job that shards in groups of neighbours, and reduces over their replicas."""
    size, copies = rng.choice([(4, 1), (2, 2), (4, 2), (2, 4)])
    world, layers = size * copies, rng.randint(2, 4)
    groups = {"0": ("default_pg", tuple(range(world)))}
    steps: dict[int, list[Op]] = {}
    for rank in range(world):
        shard, replica = f"1{rank // size}", f"2{rank % size}"
        first = rank // size * size
        groups[shard] = ("shard", tuple(range(first, first + size)))
        groups[replica] = ("replica", tuple(range(rank % size, world, size)))
        ops = [Op(shard, GATHER, 1000 + 10 * layer, 30) for layer in range(layers)]
        for layer in reversed(range(layers)):
            ops.append(Op(shard, GATHER, 1000 + 10 * layer, 35))
            ops.append(Op(shard, SCATTER, 4000 + 10 * layer, 36))
            if copies > 1:
                ops.append(Op(replica, ALL_REDUCE, 1000 + 10 * layer, 37))
        steps[rank] = [*ops, Op("0", ALL_REDUCE, 1, _STEP_LINE)]
    if copies == 1:
        groups = {name: group for name, group in groups.items() if not name.startswith("2")}
    return groups, steps


def grid(rng: random.Random) -> Layout:
    """Make a job with tensor, data and pipeline groups, and transfers between stages."""
    shape = rng.choice([(2, 2, 2), (2, 1, 2), (2, 2, 1), (1, 2, 4), (4, 2, 2)])
    return make_grid(shape, rng.randint(1, 3), rng.randint(1, 2))


def make_grid(shape: tuple[int, int, int], layers: int, batches: int) -> Layout:
    """Make such a job of a shape: ranks in tensor and data groups, and stages."""
    tensor, data, stages = shape
    world = tensor * data * stages
    groups = {"0": ("default_pg", tuple(range(world)))}
    steps: dict[int, list[Op]] = {}
    for rank in range(world):
        t, d, q = rank % tensor, rank // tensor % data, rank // (tensor * data)
        mine = {"1": f"1{d:02}{q}", "2": f"2{t:02}{q}", "3": f"3{t}{d:02}"}
        first = (q * data + d) * tensor
        stage = range(q * data * tensor, (q + 1) * data * tensor)
        groups[mine["1"]] = ("tensor", tuple(range(first, first + tensor)))
        groups[mine["2"]] = ("data", tuple(stage[t::tensor]))
        groups[mine["3"]] = ("pipeline", tuple(range(d * tensor + t, world, data * tensor)))
        steps[rank] = _make_grid_step(mine, (q, stages), layers, batches, tensor > 1, data > 1)
    return {name: group for name, group in groups.items() if len(group[1]) > 1}, steps


def _make_grid_step(
    names: Mapping[str, str],
    place: tuple[int, int],
    layers: int,
    batches: int,
    has_tensor: bool,
    has_data: bool,
) -> list[Op]:
    stage, stages = place
    pipe = names["3"]
    ops: list[Op] = []
    for towards in (1, -1):
        for _ in range(batches):
            before, after = stage - towards, stage + towards
            if 0 <= before < stages:
                ops.append(Op(pipe, f"recv {stage}<-{before}", 500, 50 + towards))
            if has_tensor:
                ops += [Op(names["1"], ALL_REDUCE, 800, 60 + towards)] * (2 * layers)
            if 0 <= after < stages:
                ops.append(Op(pipe, f"send {stage}->{after}", 500, 55 + towards))
    if has_data:
        ops += [Op(names["2"], SCATTER, 9000, 70), Op(names["2"], GATHER, 900, 71)]
    return [*ops, Op("0", ALL_REDUCE, 1, _STEP_LINE)]


LAYOUTS: tuple[Callable[[random.Random], Layout], ...] = (plain, sharded, grid)


@dataclass
class _Draft:
    """A job without a fault, and where one may be put: in the program of a rank, at an op."""

    job: Queues
    rng: random.Random
    per_step: int
    rank: int
    at: int

    @property
    def program(self) -> Program:
        return self.job.programs[self.rank]

    def seek(self, fits: Callable[[Op], bool]) -> bool:
        """Move on to an op that fits, within a step."""
        found = [
            index
            for index in range(self.at, min(self.at + self.per_step, len(self.program)))
            if fits(self.program[index])
        ]
        if found:
            self.at = self.rng.choice(found)
        return bool(found)


def _draft(rng: random.Random, last_steps: int) -> _Draft:
    groups, steps = rng.choice(LAYOUTS)(rng)
    # Names count up in the order in which groups are made, kind by kind.
    groups = {name: groups[name] for name in sorted(groups, key=int)}
    fault_step = rng.randint(0, 8)
    if rng.random() < 0.3:
        steps = {rank: [*ops[:-1], replace(ops[-1], syncs=True)] for rank, ops in steps.items()}
    programs = unroll(steps, fault_step + last_steps, rng)
    _add_rare(programs, rng)
    rank = rng.choice(sorted(programs))
    per_step = len(steps[rank])
    job = Queues(
        groups,
        programs,
        rng,
        ahead=rng.choice([1, 3, 10, 2 * per_step, 5 * per_step]),
        streams=rng.random() < 0.4,
        timing=rng.random() < 0.3,
        frames=rng.random() < 0.5,
        ring=rng.choice([2000, 2000, max(8, 3 * per_step)]),
        clocks_ns={one: rng.randrange(-50 * MS, 50 * MS) for one in programs},
    )
    return _Draft(job, rng, per_step, rank, fault_step * per_step)


def _add_rare(programs: dict[int, Program], rng: random.Random) -> None:
    """Let all ranks make two more calls after some of the steps."""
    every, first = rng.choice([0, 0, 3, 5]), rng.randint(0, 4)
    for rank, program in programs.items() if every else ():
        programs[rank] = [
            one
            for op in program
            for one in (
                [op, *[replace(op, line=90, size=3, syncs=False)] * 2]
                if op.line == _STEP_LINE and (op.step - first) % every == 0
                else [op]
            )
        ]


def _is_collective(op: Op) -> bool:
    return op.ends is None


def _truth(draft: _Draft, *codes: str) -> Case:
    return Case(draft.job, frozenset([draft.rank]), codes)


def skip(draft: _Draft) -> Case | None:
    """Let a rank leave out a collective."""
    draft.seek(_is_collective)
    del draft.program[draft.at]
    return _truth(draft, "H127")


def extra(draft: _Draft) -> Case | None:
    """Let a rank make a collective more."""
    draft.seek(_is_collective)
    op = draft.program[draft.at]
    changed = draft.rng.choice([op, replace(op, name=ALL_REDUCE, size=1)])
    draft.program.insert(draft.at, replace(changed, line=_EXTRA_LINE))
    return _truth(draft, "H102")


def _change(draft: _Draft, codes: tuple[str, ...], **changes: object) -> Case | None:
    op = draft.program[draft.at]
    draft.program[draft.at] = replace(op, **changes)  # type: ignore[arg-type]
    return _truth(draft, *codes)


def wrong_op(draft: _Draft) -> Case | None:
    """Let a rank call another op, at the same line."""
    draft.seek(_is_collective)
    name = "broadcast" if draft.program[draft.at].name == ALL_REDUCE else ALL_REDUCE
    return _change(draft, ("H105",), name=name)


def wrong_size(draft: _Draft) -> Case | None:
    """Let a rank give a tensor of another size."""
    draft.seek(_is_collective)
    return _change(draft, ("H106",), size=draft.program[draft.at].size + 7)


def wrong_type(draft: _Draft) -> Case | None:
    """Let a rank give a tensor of another type."""
    draft.seek(_is_collective)
    return _change(draft, ("H107",), dtype="Half")


def host_stops(draft: _Draft) -> Case | None:
    """Let the host of a rank issue no more."""
    draft.seek(_is_collective)
    draft.job.host_stops[draft.rank] = draft.at
    return _truth(draft, "H101")


def device_stops(draft: _Draft) -> Case | None:
    """Let the device of a rank never start an op."""
    draft.seek(_is_collective)
    draft.job.device_stops[draft.rank] = draft.at
    case = _truth(draft, "H123")
    # Without starts, nothing tells this rank from its peers.
    return case if draft.job.timing else replace(case, ranks=frozenset(), codes=("H122",))


def device_hangs(draft: _Draft) -> Case | None:
    """Let the device of a rank not end an op that its peers end."""
    if not draft.seek(lambda op: _is_collective(op) and len(draft.job.groups[op.group][1]) > 1):
        return None
    draft.job.device_hangs[draft.rank] = draft.at
    return _truth(draft, "H123")


def network(draft: _Draft) -> Case | None:
    """Let nobody end an op that all started."""
    draft.seek(_is_collective)
    draft.job.cut = draft.rank, draft.at
    return Case(draft.job, frozenset(), ("H122",))


def half_missing(draft: _Draft) -> Case | None:
    """Let a rank leave out a send or a receive."""
    if not draft.seek(lambda op: op.ends is not None):
        return None
    del draft.program[draft.at]
    return _truth(draft, "H110")


def order(draft: _Draft) -> Case | None:
    """Let a rank use two groups in another order."""
    program, groups = draft.program, draft.job.groups

    def crosses(index: int) -> bool:
        one, other = program[index], program[index + 1]
        both = set(groups[one.group][1]) & set(groups[other.group][1])
        return one.group != other.group and len(both) > 1 and not (one.ends or other.ends)

    found = [at for at in range(draft.at, draft.at + draft.per_step) if crosses(at)]
    if not found:
        return None
    at = draft.rng.choice(found)
    program[at], program[at + 1] = program[at + 1], program[at]
    return _truth(draft, "H104")


def slow_device(draft: _Draft) -> Case | None:
    """Let the device of a rank take longer in each step."""
    extra_ns = draft.rng.randint(20, 100) * MS
    at = draft.at % draft.per_step
    draft.job.programs[draft.rank] = [
        replace(op, work_ns=op.work_ns + extra_ns) if index % draft.per_step == at else op
        for index, op in enumerate(draft.program)
    ]
    return _truth(draft, "S301")


def slow_host(draft: _Draft) -> Case | None:
    """Let the host of a rank come late with the first op of each step."""
    extra_ns = draft.rng.randint(40, 150) * MS
    draft.job.programs[draft.rank] = [
        replace(op, host_ns=op.host_ns + extra_ns) if index % draft.per_step == 0 else op
        for index, op in enumerate(draft.program)
    ]
    return _truth(draft, "S301")


def healthy(draft: _Draft) -> Case | None:
    """Let the job end well; the host of one rank may do more, while its device has work."""
    if draft.job.ahead > draft.per_step and draft.rng.random() < 0.5:
        step_ns = sum(op.work_ns for op in draft.program[: draft.per_step])
        draft.job.programs[draft.rank] = [
            replace(op, host_ns=step_ns // 3) if index % draft.per_step == 0 else op
            for index, op in enumerate(draft.program)
        ]
    return Case(draft.job)


moving = healthy

FAULTS: Mapping[str, Callable[[_Draft], Case | None]] = {
    "skip": skip,
    "extra": extra,
    "wrong op": wrong_op,
    "wrong size": wrong_size,
    "wrong type": wrong_type,
    "host stops": host_stops,
    "device stops": device_stops,
    "device hangs": device_hangs,
    "network": network,
    "half missing": half_missing,
    "order": order,
    "slow device": slow_device,
    "slow host": slow_host,
    "healthy": healthy,
    "moving": moving,
}
_ENDS = {"slow device", "slow host", "healthy", "moving"}


def make_case(kind: str, seed: int) -> Case:
    """Make the job of a kind and a seed: the first one drawn in which the fault shows."""
    rng = random.Random(f"{kind} {seed}")
    while True:
        case = FAULTS[kind](_draft(rng, _SLOW_STEPS if "slow" in kind else _LAST_STEPS))
        if case is None:
            continue
        job = case.job
        if kind not in _ENDS:
            job.active_only = rng.random() < 0.2
        if job.run().is_over != (kind in _ENDS):
            continue
        if kind not in _ENDS and job.is_issued:
            # At the end of a job, nobody is left to show what should have come.
            continue
        return _cut(case, rng) if kind == "moving" else case


def _cut(case: Case, rng: random.Random) -> Case:
    """Take the dumps while the job goes on, each at its own moment."""
    job = case.job
    first_ns = min(created[0] for created in job.created.values())
    middle_ns = rng.randint((2 * first_ns + job.last_ns) // 3, job.last_ns)
    spread_ns = rng.choice([0, 30, 300, 2000]) * MS
    when_ns = {rank: middle_ns + rng.randint(0, spread_ns) for rank in job.programs}
    return replace(case, when_ns=when_ns)


RIGHT, NO_RANK, WRONG_CODE, UNSURE, WRONG_UNSURE, WRONG = (
    "right",
    "no rank",
    "wrong code",
    "inconclusive",
    "wrong, possible",
    "WRONG",
)
OUTCOMES = (RIGHT, WRONG_CODE, NO_RANK, UNSURE, WRONG_UNSURE, WRONG)


def judge(case: Case, report: Report) -> str:
    """Compare a report with the truth: anybody named who is innocent makes it wrong."""
    named = [item for item in report.findings if item.severity.value != "note"]
    wrong = [item for item in named if not case.codes or _names_innocent(case, item)]
    if wrong:
        is_unsure = all(item.confidence is Confidence.POSSIBLE for item in wrong)
        return WRONG_UNSURE if is_unsure else WRONG
    if not named:
        return UNSURE if case.codes else RIGHT
    first = named[0]
    if case.ranks and not set(first.culprits.ranks) & case.ranks:
        return NO_RANK
    return RIGHT if first.code in case.codes else WRONG_CODE


def _names_innocent(case: Case, item: Finding) -> bool:
    """All ranks of a ring belong to it, also those that kept the order."""
    is_ring = item.code == "H104" and "H104" in case.codes
    return not is_ring and bool(set(item.culprits.ranks) - case.ranks)


def try_case(kind: str, seed: int, folder: Path) -> tuple[str, Report, Case]:
    """Make a case, judge its dumps, and compare."""
    case = make_case(kind, seed)
    case.job.write(folder, case.when_ns)
    report = diagnose_paths([folder])
    return judge(case, report), report, case
