"""Ranks that all wait, each where its stack shows, in jobs whose ops nobody recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from textwrap import dedent

import pytest
from tests.diagnose.scenes import C10D, TORCH, Job

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence, Finding, Gap, Report, Severity, Verdict
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.records import Connection

FILE = "/job/train.py"
BACKWARD = Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 900)
WRAPPER = Frame("_exception_logger.<locals>.wrapper", f"{TORCH}/distributed/c10d_logger.py", 83)
Pair = tuple[int, int]
Waits = dict[tuple[int, ...], tuple[str, tuple[str, ...]]]


def call(op: str) -> tuple[Frame, ...]:
    return (BACKWARD,) if op == "backward" else (Frame(op, C10D, 5000), WRAPPER)


def link(job: Job, extra: Iterable[Pair] = ()) -> Job:
    """Connect each two ranks once for the default group, and the given pairs once more."""
    ranks = sorted({one.rank for one in job.processes})
    pairs = [*combinations(ranks, 2), *extra]
    ends: dict[int, list[Connection]] = {rank: [] for rank in ranks}
    for number, (one, other) in enumerate(pairs):
        near, far = f"127.0.0.1:{1000 + number}", f"127.0.0.1:{9000 + number}"
        ends[one].append(Connection(near, far))
        ends[other].append(Connection(far, near))
    job.processes = [replace(look, connections=tuple(ends[look.rank])) for look in job.processes]
    return job


class Script:
    """A script whose lines are marked ``# name``; ``work`` and ``main`` are its functions."""

    def __init__(self, text: str) -> None:
        self.text = dedent(text)

    def line(self, mark: str) -> int:
        return next(i for i, line in enumerate(self.text.splitlines(), 1) if f"# {mark}" in line)

    def frames(self, *path: str) -> tuple[Frame, ...]:
        """Return frames, innermost first, of marks ``function:mark``, outermost first."""
        pairs = [one.partition(":") for one in path]
        return tuple(Frame(name, FILE, self.line(mark)) for name, _, mark in reversed(pairs))


def snapshot(
    script: Script,
    waits: Waits,
    asleep_s: float = 12.0,
    extra: Iterable[Pair] = (),
) -> Job:
    """A job of which each rank waits in an op at a place; all asleep for as long."""
    world = sum(len(ranks) for ranks in waits)
    job = Job(world=world).of_kind("snapshot", stalled_s=0.0, limit_s=0.0, longest_gap_s=0.0)
    for ranks, (op, path) in waits.items():
        for rank in ranks:
            job.stands(rank, (*call(op), *script.frames(*path)), asleep_s=asleep_s)
    job.source(FILE, script.text)
    return link(job, extra)


def judge(job: Job) -> tuple[Report, Finding]:
    report = diagnose(job.evidence())
    (finding,) = report.findings
    return report, finding


SAVE = Script(
    """
    def save(model, rank):
        if rank == 0:
            torch.save(model)
            dist.barrier()  # extra
        dist.barrier()  # second

    def main():
        for step in range(100):
            loss.backward()  # step
            if step % 10 == 0:
                save(model, rank)  # save
    """
)
SAVING: Waits = {
    (0,): ("barrier", ("main:save", "save:second")),
    (1, 2, 3): ("backward", ("main:step",)),
}


def test_call_that_only_one_rank_makes_by_the_source_is_named_though_the_rank_is_past_it() -> None:
    report, finding = judge(snapshot(SAVE, SAVING))

    assert report.verdict is Verdict.STUCK
    assert (finding.code, finding.culprits.ranks, finding.victims.ranks) == ("H102", [0], "1-3")
    assert (finding.confidence, finding.severity) == (Confidence.LIKELY, Severity.ERROR)
    assert (finding.where[0].rank, finding.where[0].line) == (0, SAVE.line("extra"))
    assert "rank 0 waits in barrier in save (train.py:6)" in finding.summary
    assert "ranks 1-3 wait in backward in main (train.py:10)" in finding.summary
    assert any("whystuck run" in remedy for remedy in finding.remedies)


def test_job_that_is_not_known_to_stand_for_long_is_only_possible() -> None:
    _, finding = judge(snapshot(SAVE, SAVING, asleep_s=2.0))
    assert (finding.confidence, finding.severity) == (Confidence.POSSIBLE, Severity.WARNING)


def test_two_ranks_are_told_apart_by_a_condition_on_the_rank() -> None:
    waits: Waits = {(0,): SAVING[(0,)], (1,): SAVING[(1, 2, 3)]}
    _, finding = judge(snapshot(SAVE, waits))
    assert (finding.code, finding.culprits.ranks) == ("H102", [0])
    assert finding.confidence is Confidence.POSSIBLE


def test_condition_on_the_rank_tells_nothing_where_ranks_have_guessed_numbers() -> None:
    waits: Waits = {(0,): SAVING[(0,)], (1,): SAVING[(1, 2, 3)]}
    evidence = snapshot(SAVE, waits).evidence()
    evidence = replace(evidence, gaps=(Gap(None, "rank numbers", "nothing names them"),))
    (finding,) = diagnose(evidence).findings
    assert finding.culprits.ranks == []


def test_other_rank_at_the_place_of_the_lone_call_is_not_blamed_for_it() -> None:
    waits: Waits = {(2,): SAVING[(0,)], (0, 1, 3): SAVING[(1, 2, 3)]}
    _, finding = judge(snapshot(SAVE, waits))
    # rank 2 is the only one that is elsewhere, but it never calls the first barrier
    assert finding.confidence is Confidence.POSSIBLE
    assert finding.culprits.ranks == [2]
    assert SAVE.line("extra") not in {place.line for place in finding.where}


def test_calls_that_each_rank_makes_at_a_place_of_its_own_are_no_lone_calls() -> None:
    script = Script(
        """
        def main():
            for step in range(100):
                if rank != 0:
                    dist.barrier()  # others
                prepare()
                if rank == 0:
                    dist.barrier()  # first
                loss.backward()  # step
        """
    )
    waits: Waits = {(0,): ("barrier", ("main:first",)), (1, 2, 3): ("backward", ("main:step",))}
    _, finding = judge(snapshot(script, waits))
    assert finding.confidence is Confidence.POSSIBLE
    assert "by a condition on the rank" not in finding.summary


LOOP = Script(
    """
    def main():
        for batch in loader:
            loss.backward()  # step
        dist.barrier()  # end
    """
)


def test_few_that_are_past_the_loop_left_it_early() -> None:
    waits: Waits = {(3,): ("barrier", ("main:end",)), (0, 1, 2): ("backward", ("main:step",))}
    _, finding = judge(snapshot(LOOP, waits))
    assert (finding.code, finding.culprits.ranks) == ("H103", [3])
    assert finding.confidence is Confidence.LIKELY
    assert [place.line for place in finding.where] == [LOOP.line("end"), LOOP.line("step")]


TWO_LINES = Script(
    """
    def main():
        for step in range(100):
            loss = model(batch)  # forward
            loss.backward()  # step
        dist.barrier()  # after
    """
)


def test_rank_that_is_past_the_loop_is_named_wherever_the_others_are_in_it() -> None:
    waits: Waits = {
        (3,): ("barrier", ("main:after",)),
        (1,): ("broadcast", ("main:forward",)),
        (0, 2): ("backward", ("main:step",)),
    }
    _, finding = judge(snapshot(TWO_LINES, waits))

    assert (finding.code, finding.culprits.ranks, finding.victims.ranks) == ("H103", [3], "0-2")
    assert finding.where[0].line == TWO_LINES.line("after")


def test_one_of_two_that_is_past_the_loop_is_only_possible() -> None:
    waits: Waits = {(1,): ("barrier", ("main:end",)), (0,): ("backward", ("main:step",))}
    _, finding = judge(snapshot(LOOP, waits))
    assert (finding.code, finding.culprits.ranks) == ("H103", [1])
    assert finding.confidence is Confidence.POSSIBLE


def test_nobody_is_blamed_when_most_ranks_are_past_the_loop() -> None:
    waits: Waits = {(0,): ("backward", ("main:step",)), (1, 2, 3): ("barrier", ("main:end",))}
    report, finding = judge(snapshot(LOOP, waits))
    assert (finding.code, finding.culprits.ranks) == ("H103", [])
    assert (report.verdict, finding.confidence) == (Verdict.STUCK, Confidence.POSSIBLE)


def test_loop_over_parameters_is_as_long_on_all_ranks() -> None:
    script = Script(
        """
        def main():
            for p in model.parameters():
                dist.all_reduce(p.grad)  # grads
            dist.barrier()  # end
        """
    )
    waits: Waits = {(3,): ("barrier", ("main:end",)), (0, 1, 2): ("all_reduce", ("main:grads",))}
    _, finding = judge(snapshot(script, waits))
    assert (finding.code, finding.culprits.ranks) == ("H102", [3])
    assert finding.confidence is Confidence.POSSIBLE


def test_rank_beside_a_ring_of_small_groups_did_not_leave_their_loop() -> None:
    script = Script(
        """
        def exchange(groups):
            for group in groups:
                dist.all_reduce(x, group=group)  # ring

        def main():
            for batch in loader:
                exchange(groups)  # exchange
                dist.all_reduce(loss)  # mean
        """
    )
    waits: Waits = {
        (3,): ("all_reduce", ("main:mean",)),
        (0, 1, 2): ("all_reduce", ("main:exchange", "exchange:ring")),
    }
    _, finding = judge(snapshot(script, waits, extra=[(0, 1), (1, 2), (0, 2)]))
    assert (finding.code, finding.culprits.ranks) == ("H104", [])


@pytest.mark.parametrize(("loop", "code"), [("loader", "H103"), ("chunks", "H105")])
def test_loop_within_the_epochs_may_differ_in_length_when_it_goes_over_batches(
    loop: str, code: str
) -> None:
    script = Script(
        f"""
        def main():
            for epoch in range(10):
                for x in {loop}:
                    loss.backward()  # step
                dist.all_reduce(score)  # score
        """
    )
    waits: Waits = {(3,): ("all_reduce", ("main:score",)), (0, 1, 2): ("backward", ("main:step",))}
    _, finding = judge(snapshot(script, waits))
    assert (finding.code, finding.culprits.ranks) == (code, [3])


def test_branches_of_one_condition_are_an_op_mismatch() -> None:
    script = Script(
        """
        def main():
            for batch in loader:
                if score > best:
                    dist.broadcast(x, 0)  # odd
                else:
                    dist.all_reduce(x)  # even
        """
    )
    waits: Waits = {(1,): ("broadcast", ("main:odd",)), (0, 2, 3): ("all_reduce", ("main:even",))}
    _, finding = judge(snapshot(script, waits))
    assert (finding.code, finding.culprits.ranks) == ("H105", [1])
    assert finding.confidence is Confidence.POSSIBLE

    pair: Waits = {(1,): waits[(1,)], (0,): waits[(0, 2, 3)]}
    _, finding = judge(snapshot(script, pair))
    assert (finding.code, finding.culprits.ranks) == ("H105", [])
    assert {place.rank for place in finding.where} == {0, 1}


def test_rank_that_waits_alone_in_a_gather_may_wait_for_one_that_skipped_it() -> None:
    script = Script(
        """
        def main():
            for batch in loader:
                dist.gather(x, out)  # gather
                dist.all_reduce(x)  # reduce
        """
    )
    waits: Waits = {
        (0,): ("gather", ("main:gather",)),
        (1, 2, 3): ("all_reduce", ("main:reduce",)),
    }
    _, finding = judge(snapshot(script, waits))
    assert (finding.confidence, finding.culprits.ranks) == (Confidence.POSSIBLE, [])


METRICS = Script(
    """
    def report(batch):
        if not batch:
            return
        dist.all_reduce(batch)  # reduce

    def main():
        for batch in loader:
            report(batch)  # report
            dist.all_gather(out, batch)  # gather
    """
)


def test_call_that_a_return_leads_past_is_the_skipped_one() -> None:
    waits: Waits = {
        (2,): ("all_gather", ("main:gather",)),
        (0, 1, 3): ("all_reduce", ("main:report", "report:reduce")),
    }
    _, finding = judge(snapshot(METRICS, waits))
    assert (finding.code, finding.culprits.ranks) == ("H127", [2])
    assert finding.where[0].line == METRICS.line("reduce")
    assert finding.confidence is Confidence.POSSIBLE


ORDERS = Script(
    """
    def main():
        for batch in loader:
            if odd:
                dist.all_reduce(x, group=losses)  # odd
                dist.all_reduce(x, group=metrics)
            else:
                dist.all_reduce(x, group=metrics)  # even
                dist.all_reduce(x, group=losses)
            dist.all_reduce(x, group=metrics)  # alone
    """
)
TWICE = [pair for pair in combinations(range(4), 2) for _ in range(2)]


def test_groups_in_opposite_orders_are_shown_by_the_source() -> None:
    waits: Waits = {(0, 1): ("all_reduce", ("main:odd",)), (2, 3): ("all_reduce", ("main:even",))}
    _, finding = judge(snapshot(ORDERS, waits, extra=TWICE))
    assert (finding.code, finding.culprits.ranks) == ("H104", [0, 1, 2, 3])
    assert finding.confidence is Confidence.LIKELY


def test_nobody_is_blamed_for_calls_on_two_groups_whose_order_is_open() -> None:
    waits: Waits = {(0,): ("all_reduce", ("main:odd",)), (1, 2, 3): ("all_reduce", ("main:alone",))}
    _, finding = judge(snapshot(ORDERS, waits, extra=TWICE))
    assert (finding.code, finding.culprits.ranks) == ("H104", [])
    assert (finding.confidence, finding.severity) == (Confidence.POSSIBLE, Severity.WARNING)


def test_skip_on_a_second_group_of_all_ranks_is_told_from_another_order() -> None:
    script = Script(METRICS.text.replace("all_reduce(batch)", "all_reduce(batch, group=metrics)"))
    waits: Waits = {
        (2,): ("all_gather", ("main:gather",)),
        (0, 1, 3): ("all_reduce", ("main:report", "report:reduce")),
    }
    _, finding = judge(snapshot(script, waits, extra=combinations(range(4), 2)))
    assert (finding.code, finding.culprits.ranks) == ("H127", [2])
    # groups of few hide who waits for whom
    _, finding = judge(snapshot(script, waits, extra=[(0, 1), (1, 2)]))
    assert finding.culprits.ranks == []


EXPERTS = Script(
    """
    def dispatch(x, group):
        dist.all_to_all_single(out, x, group=group)  # experts

    def moe(x, group):
        if x.shape[0] == 0:
            return x
        return dispatch(x, group)  # dispatch

    def main():
        for x in loader:
            moe(x, group)  # moe
            dist.all_reduce(grads)  # grads
    """
)


def test_member_of_a_small_group_that_went_past_its_call_is_named_and_not_who_waits_there() -> None:
    waits: Waits = {
        (2,): ("all_to_all_single", ("main:moe", "moe:dispatch", "dispatch:experts")),
        (0, 1, 3): ("all_reduce", ("main:grads",)),
    }
    _, finding = judge(snapshot(EXPERTS, waits, extra=[(0, 1), (2, 3)]))
    assert (finding.code, finding.culprits.ranks) == ("H127", [3])
    assert finding.where[0].line == EXPERTS.line("experts")

    # without the connections, nobody knows whom it waits for
    job = snapshot(EXPERTS, waits)
    job.processes = [replace(look, connections=()) for look in job.processes]
    _, finding = judge(job)
    assert finding.culprits.ranks == []


@pytest.mark.parametrize("state", ["moving", "computing"])
def test_no_parting_is_seen_in_a_job_that_may_go_on(state: str) -> None:
    job = snapshot(LOOP, {(1, 2, 3): ("backward", ("main:step",))})
    end = (*call("barrier"), *LOOP.frames("main:end"))
    step = (*call("backward"), *LOOP.frames("main:step"))
    if state == "moving":
        job.stands(0, [step, end])
    else:
        job.stands(0, end, cpu_share=0.9)
        job.stands(1, [step, (Frame("helper", FILE, 3), *step)])
    job.world = 4
    assert not [one for one in diagnose(job.evidence()).findings if one.culprits.ranks]


def test_rank_whose_stack_is_not_known_may_be_on_its_way() -> None:
    job = snapshot(LOOP, {(1,): ("barrier", ("main:end",)), (2, 3): ("backward", ("main:step",))})
    job.world = 4
    assert all(1 not in one.culprits.ranks for one in diagnose(job.evidence()).findings)


SOLVE = Script(
    """
    def solve(x):
        while error > limit:
            x = refine(x)  # refine
        return x

    def main():
        for batch in loader:
            solve(batch)  # solve
            if rank == 0:
                plot(batch)  # plot
            loss.backward()  # step
    """
)


def busy(place: tuple[str, ...], asleep_s: float) -> Job:
    """A job whose rank 1 computes at a place while the others wait in backward for as long."""
    waits: Waits = {(0, 2, 3): ("backward", ("main:step",))}
    job = snapshot(SOLVE, waits, asleep_s=asleep_s)
    frames = SOLVE.frames(*place)
    job.stands(1, [frames, (Frame("helper", FILE, 3), *frames)], cpu_share=0.9)
    job.world = 4
    return job


def test_rank_at_work_in_the_loop_of_the_others_is_late_once_they_have_waited_for_long() -> None:
    # a moving function is no standstill by itself; a line that moves within one is
    job = busy(("main:solve", "solve:refine"), asleep_s=25.0)
    job.stacks = [
        replace(one, threads=(replace(one.threads[0], frames=one.threads[0].frames[-2:]),))
        if one.rank == 1
        else one
        for one in job.stacks
    ]
    _, finding = judge(job)
    assert (finding.code, finding.culprits.ranks) == ("H101", [1])
    assert (finding.confidence, finding.severity) == (Confidence.POSSIBLE, Severity.WARNING)


@pytest.mark.parametrize(
    ("place", "asleep_s"), [(("main:solve", "solve:refine"), 5.0), (("main:plot",), 25.0)]
)
def test_rank_at_work_is_no_alarm_soon_or_where_its_rank_is_meant_to_work(
    place: tuple[str, ...], asleep_s: float
) -> None:
    job = busy(place, asleep_s)
    report = diagnose(job.evidence())
    assert all(finding.severity is Severity.NOTE for finding in report.findings)


@pytest.mark.parametrize(
    ("counts", "is_stuck"),
    [((7, 7, 7), True), ((7, 7, 9), False), ((7, 9, 9), False), ((7, 17, 27), True)],
)
def test_rank_that_wakes_now_and_then_is_on_its_way_and_one_that_polls_is_not(
    counts: tuple[int, ...], is_stuck: bool
) -> None:
    waits: Waits = {(0, 2, 3): ("backward", ("main:step",))}
    job = snapshot(SOLVE, waits)
    job.stands(1, SOLVE.frames("main:solve", "solve:refine"))
    job.world = 4
    job.processes = [
        replace(look, taken_ns=index * 1_000_000_000, switches=count)
        for rank in range(4)
        for look in [next(one for one in job.processes if one.rank == rank)]
        for index, count in enumerate(counts)
    ]
    report = diagnose(job.evidence())
    assert [finding.code for finding in report.findings] == (["H101"] if is_stuck else [])
    assert report.verdict is (Verdict.STUCK if is_stuck else Verdict.HEALTHY)


EXPORT = Script(
    """
    def main():
        for batch in loader:
            loss.backward()  # step
        if rank == 1:
            export(model)  # export
        dist.destroy_process_group()  # destroy
    """
)


def leaves(frames: tuple[Frame, ...], asleep_s: float = 12.0) -> Job:
    """A job whose rank 1 is at some frames while the others wait in backward."""
    job = snapshot(EXPORT, {(0, 2, 3): ("backward", ("main:step",))}, asleep_s=asleep_s)
    job.stands(1, frames, asleep_s=asleep_s)
    job.world = 4
    return job


def test_rank_that_sleeps_past_the_loop_left_early() -> None:
    _, finding = judge(leaves(EXPORT.frames("main:export")))
    assert (finding.code, finding.culprits.ranks) == ("H103", [1])
    assert finding.confidence is Confidence.LIKELY
    assert [place.line for place in finding.where] == [EXPORT.line("export"), EXPORT.line("step")]


def test_rank_in_teardown_is_only_likely_without_a_record() -> None:
    destroy = Frame("destroy_process_group", C10D, 2300)
    _, finding = judge(leaves((destroy, *EXPORT.frames("main:destroy"))))
    assert (finding.code, finding.culprits.ranks) == ("H103", [1])
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    ("asleep_s", "confidence"), [(12.0, Confidence.LIKELY), (2.0, Confidence.POSSIBLE)]
)
def test_rank_that_sleeps_in_its_dataset_for_long_is_likely(
    asleep_s: float, confidence: Confidence
) -> None:
    fetch = Frame("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 52)
    item = Frame("__getitem__", "/job/data.py", 7)
    _, finding = judge(leaves((item, fetch, *EXPORT.frames("main:step")), asleep_s))
    assert (finding.code, finding.confidence) == ("H111", confidence)
    assert finding.where[0].file == "/job/data.py"


@pytest.mark.parametrize(("share", "code"), [(0.8, "H117"), (0.0, "H101")])
def test_rank_that_waits_for_a_program_is_at_work_as_long_as_that_is(
    share: float, code: str
) -> None:
    job = snapshot(SOLVE, {(0, 2, 3): ("backward", ("main:step",))})
    wait = Frame("communicate", "/usr/lib/python3.11/subprocess.py", 1196)
    frames = (wait, *SOLVE.frames("main:plot"))
    job.stands(1, frames, asleep_s=12.0, children_cpu_share=share)
    job.world = 4
    report, finding = judge(job)
    assert finding.code == code
    assert report.verdict is (Verdict.WAITING if share else Verdict.STUCK)
