"""Hangs of NCCL jobs whose hosts wait in calls of CUDA, or are far ahead: who is to blame.

Ranks 0, 2 and 3 wait for rank 1, or nobody is to blame. Each hang is judged by dumps alone, by
dumps and stacks, and by op logs that tell no ends of ops on devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.dumps import SCHEDULED, STARTED, Dumps
from tests.diagnose.op_scenes import Logged
from tests.diagnose.scenes import MODULE, TORCH, WAITING, Job, at
from tests.parse.ops.op_logs import ASYNC, NO_END

from whystuck.evidence.finding import Confidence, Finding, Report, Verdict
from whystuck.evidence.ops.collectives import Frame
from whystuck.pipeline import diagnose_paths

TRAIN = "/job/train.py"
CULPRIT, VICTIMS, ALL = 1, (0, 2, 3), range(4)
STEP, LOSS, WAIT, SLEEP = 10, 22, 31, 50
SITE = (at(TRAIN, LOSS), MODULE)
SOURCE = "\n" * (WAIT - 1) + "    total += loss.item()\n"
HOST = (at(TRAIN, WAIT), MODULE)
ASLEEP = (at("/job/data.py", SLEEP, "load"), at(TRAIN, 12), MODULE)

HOSTS: dict[str, tuple[Frame, ...]] = {
    "item": HOST,
    "clip_grad_norm": (Frame("_get_total_norm", f"{TORCH}/nn/utils/clip_grad.py", 96), *HOST),
    "synchronize": (Frame("synchronize", f"{TORCH}/cuda/__init__.py", 1083), *HOST),
    "backward": (
        Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 829),
        Frame("backward", f"{TORCH}/autograd/__init__.py", 347),
        Frame("backward", f"{TORCH}/_tensor.py", 648),
        *HOST,
    ),
    "launch": (
        Frame("forward", f"{TORCH}/nn/modules/linear.py", 125),
        Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1784),
        *HOST,
    ),
    "allocation": (Frame("zeros_like", f"{TORCH}/_refs/__init__.py", 4800), *HOST),
    "own line": (at("/job/model.py", 7, "scale"), *HOST),
    "loader": (
        Frame("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54),
        Frame("__next__", f"{TORCH}/utils/data/dataloader.py", 733),
        *HOST,
    ),
}
RECEIVING = (at(TRAIN, 33, "exchange"), MODULE)
KINDS = ["stall", "files", "snapshot"]


def look(hosts: Sequence[Frame], culprit: Sequence[Frame] = ASLEEP, kind: str = "stall") -> Job:
    """Take stacks: hosts of devices spin, rank 1 sleeps in its data unless it waits as well."""
    job = Job().of_kind(kind).source(TRAIN, SOURCE)
    for rank in VICTIMS:
        job.stands(rank, hosts, cpu_share=1.0)
    return job.stands(CULPRIT, culprit, cpu_share=1.0 if culprit == hosts else 0.0)


def steps(dumps: Dumps, *, timing: bool = False) -> Dumps:
    """Let a job go well; NCCL tells when ops began only where it takes the time of them."""
    more: dict[str, Any] = {} if timing else {"time_discovered_started_ns": None}
    for _ in range(5):
        dumps.op(ALL, "all_reduce", (at(TRAIN, STEP), MODULE), **more)
    return dumps


def late(**more: Any) -> Dumps:
    """Let rank 1 never come to an op, behind which the others have queued more."""
    dumps = steps(Dumps())
    dumps.op(VICTIMS, "all_reduce", SITE, state=SCHEDULED, **more)
    return dumps.op(VICTIMS, "all_reduce", (at(TRAIN, STEP), MODULE), state=SCHEDULED)


def pending(*, started: Sequence[int] = (), timing: bool = False, **changes: Any) -> Dumps:
    """Let all ranks issue an op that nobody's device finishes."""
    dumps = steps(Dumps(), timing=timing)
    for rank in ALL:
        state = STARTED if rank in started else SCHEDULED
        own = changes if rank == CULPRIT else {}
        dumps.op([rank], "all_reduce", SITE, state=state, **own)
    return dumps


def logged(*, ahead: int = 2) -> Logged:
    """Make op logs whose ops on devices have no ends; rank 1 stops before the others do."""
    job = Logged()
    for ring in job.rings.values():
        ring.group("device", backend="nccl")
    for _ in range(5):
        issue(job, ALL, line=STEP)
    for _ in range(ahead):
        issue(job, VICTIMS)
    return job


def issue(job: Logged, ranks: Sequence[int], op: str = "all_reduce", **more: Any) -> None:
    values: dict[str, Any] = {
        "group": 2,
        "line": LOSS,
        "flags": NO_END,
        "device": "cuda",
        "takes_ns": None,
    }
    job.op(ranks, op, **values | more)


def add_stacks(job: Logged, seen: Job) -> Report:
    job.job = seen
    return job.report()


def only(report: Report) -> Finding:
    """The one thing that is found, by a report that is never well."""
    (finding,) = report.findings
    assert report.verdict is Verdict.STUCK
    return finding


def blames_sleeper(report: Report) -> None:
    finding = only(report)
    place = finding.where[0]

    assert (finding.code, finding.culprits.ranks) == ("H101", [CULPRIT])
    assert (place.file, place.line) == ("/job/data.py", SLEEP)
    assert finding.victims.ranks == "0,2-3"
    assert finding.confidence is Confidence.LIKELY


def blames_silent_sender(report: Report) -> None:
    """However many wait for it, it is one cause; its line comes before the half that is missing."""
    finding = only(report)
    assert (finding.code, finding.culprits.ranks) == ("H110", [CULPRIT])
    assert SLEEP in {place.line for place in finding.where}
    assert "rank 1 is at load (data.py:50); ranks 2-3 wait likewise" in finding.summary
    assert finding.remedies[0].startswith("look at the line where the rank named is")


def leaves_open(report: Report) -> Finding:
    """Nobody is blamed, and the first remedy is the run that tells device and network apart."""
    finding = only(report)

    assert (finding.code, finding.culprits.ranks) == ("H122", [])
    assert finding.confidence is Confidence.POSSIBLE
    assert finding.details["started"] == "unknown"
    assert "--fr-enable-timing" in finding.remedies[0]
    return finding


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", HOSTS)
def test_rank_asleep_is_blamed_wherever_hosts_wait(host: str, kind: str, tmp_path: Path) -> None:
    blames_sleeper(late().report(tmp_path, look(HOSTS[host], kind=kind)))


def test_dumps_alone_name_the_rank_and_its_last_line(tmp_path: Path) -> None:
    finding = only(late().report(tmp_path))

    assert (finding.code, finding.culprits.ranks) == ("H101", [CULPRIT])
    assert finding.where[0].line == STEP


@pytest.mark.parametrize("host", HOSTS)
def test_op_logs_without_ends_name_the_rank_and_its_line(host: str) -> None:
    blames_sleeper(add_stacks(logged(), look(HOSTS[host])))


@pytest.mark.parametrize("flags", [NO_END, ASYNC | NO_END])
def test_op_logs_without_ends_alone_are_not_sure(flags: int) -> None:
    job = logged(ahead=0)
    for _ in range(2):
        issue(job, VICTIMS, flags=flags)
    job.job = Job().of_kind("files")
    finding = only(job.report())

    assert (finding.code, finding.culprits.ranks) == ("H101", [CULPRIT])
    assert finding.confidence is Confidence.POSSIBLE


def test_hosts_in_a_batch_of_receives(tmp_path: Path) -> None:
    dumps = steps(Dumps())
    for rank in VICTIMS:
        dumps.recv(rank, CULPRIT, RECEIVING, state=SCHEDULED)

    blames_silent_sender(dumps.report(tmp_path, look(RECEIVING)))


def test_op_logs_of_receives_without_ends() -> None:
    job = logged(ahead=0)
    for _ in range(2):
        for rank in VICTIMS:
            issue(job, [rank], "recv", peer=CULPRIT)
            issue(job, [CULPRIT], "send", peer=rank)
    for rank in VICTIMS:
        issue(job, [rank], "recv", peer=CULPRIT, line=33)

    blames_silent_sender(add_stacks(job, look(RECEIVING)))


@pytest.mark.parametrize("host", ["item", "synchronize", "launch"])
@pytest.mark.parametrize("kind", KINDS)
def test_device_that_never_begins_is_not_told_from_the_network(
    host: str, kind: str, tmp_path: Path
) -> None:
    leaves_open(pending().report(tmp_path, look(HOSTS[host], HOSTS[host], kind)))


def test_dumps_alone_do_not_tell_a_device_from_the_network(tmp_path: Path) -> None:
    leaves_open(pending().report(tmp_path))


def test_device_that_alone_has_not_begun_is_blamed(tmp_path: Path) -> None:
    report = pending(started=VICTIMS).report(tmp_path, look(HOST, HOST))
    finding = only(report)

    assert (finding.code, finding.culprits.ranks) == ("H123", [CULPRIT])
    assert finding.confidence is Confidence.LIKELY


def test_op_that_all_devices_began_is_the_network_or_the_library(tmp_path: Path) -> None:
    finding = only(pending(started=ALL).report(tmp_path, look(HOST, HOST)))

    assert (finding.code, finding.culprits.ranks) == ("H122", [])
    assert finding.confidence is Confidence.LIKELY
    assert finding.details["started"] == "all"


def test_op_that_no_device_began_is_not_the_network(tmp_path: Path) -> None:
    finding = only(pending(timing=True).report(tmp_path, look(HOST, HOST)))

    assert (finding.code, finding.culprits.ranks) == ("H122", [])
    assert finding.confidence is Confidence.POSSIBLE
    assert finding.details["started"] == "none"
    assert "CUDA_LAUNCH_BLOCKING" in finding.remedies[0]


def test_device_that_does_not_finish_what_its_peers_did_keeps_its_certainty(tmp_path: Path) -> None:
    dumps = steps(Dumps()).op(VICTIMS, "all_reduce", SITE)
    dumps.op([CULPRIT], "all_reduce", SITE, state=SCHEDULED)
    finding = only(dumps.report(tmp_path, look(HOST, HOST)))

    assert (finding.code, finding.culprits.ranks) == ("H123", [CULPRIT])
    assert finding.confidence is Confidence.CERTAIN


def test_op_logs_without_ends_leave_a_device_open() -> None:
    job = logged(ahead=0)
    issue(job, ALL)

    leaves_open(add_stacks(job, look(HOST, HOST)))


def test_host_inside_the_call_of_an_op_that_peers_issued_is_not_to_blame() -> None:
    job = logged(ahead=0)
    issue(job, VICTIMS)
    issue(job, [CULPRIT], returned_ns=0)

    leaves_open(add_stacks(job, look(HOST, (*WAITING, *HOST))))


@pytest.mark.parametrize("kind", ["stall", "files"])
def test_op_logs_without_ends_are_never_well(kind: str) -> None:
    job = logged(ahead=0)
    job.job = Job().of_kind(kind)

    assert job.report().verdict is Verdict.INCONCLUSIVE


def test_shapes_that_differ_are_found_while_hosts_wait(tmp_path: Path) -> None:
    finding = only(
        pending(input_sizes=[[5]], output_sizes=[[5]]).report(tmp_path, look(HOST, HOST))
    )

    assert (finding.code, finding.culprits.ranks) == ("H106", [CULPRIT])


def test_shapes_that_differ_are_found_in_op_logs_without_ends() -> None:
    job = logged(ahead=0)
    issue(job, VICTIMS)
    sizes: dict[str, Any] = {"in": [[5]], "out": [[5]], "in_bytes": 20, "out_bytes": 20}
    issue(job, [CULPRIT], **sizes)
    finding = only(add_stacks(job, look(HOST, HOST)))

    assert (finding.code, finding.culprits.ranks) == ("H106", [CULPRIT])


@pytest.mark.parametrize("source", ["dumps", "op logs"])
@pytest.mark.parametrize(
    ("end", "code"), [({"code": 0}, "H103"), ({"code": 3}, "C204"), ({"signal": 6}, "C203")]
)
def test_rank_that_ended_is_blamed_while_hosts_wait(
    tmp_path: Path, source: str, end: dict[str, int], code: str
) -> None:
    """On devices nobody loses a connection by it: the others wait for ever."""
    job = Job().of_kind("stall").source(TRAIN, SOURCE).ends(CULPRIT, **end)
    for rank in VICTIMS:
        job.stands(rank, HOST, cpu_share=1.0)
    report = late().report(tmp_path, job) if source == "dumps" else add_stacks(logged(), job)

    (finding,) = report.findings
    assert (finding.code, finding.culprits.ranks) == (code, [CULPRIT])
    assert finding.where[0].line == STEP


def test_killed_rank_is_blamed_while_hosts_wait(tmp_path: Path) -> None:
    job = Job().of_kind("stall").source(TRAIN, SOURCE).ends(CULPRIT, signal=9)
    for rank in VICTIMS:
        job.stands(rank, HOST, cpu_share=1.0)
    report = late().report(tmp_path, job, leave_out=[CULPRIT])

    assert [(item.code, item.culprits.ranks) for item in report.findings] == [("C201", [CULPRIT])]


def test_missing_dump_of_a_killed_rank_is_no_certainty(tmp_path: Path) -> None:
    report = late().report(tmp_path, leave_out=[CULPRIT])

    assert report.verdict is not Verdict.HEALTHY
    assert all(item.confidence is Confidence.POSSIBLE for item in report.findings)


def test_rank_that_never_comes_to_make_a_communicator(tmp_path: Path) -> None:
    # NCCL records an op when its communicator is there: nobody has an entry.
    making = (*WAITING, *HOST)
    finding = only(Dumps().report(tmp_path, look(making)))

    assert (finding.code, finding.culprits.ranks) == ("H101", [CULPRIT])
    assert finding.where[0].line == SLEEP


def test_op_logs_of_ranks_that_make_a_communicator() -> None:
    job = Logged()
    for ring in job.rings.values():
        ring.group("device", backend="nccl")
    issue(job, VICTIMS, returned_ns=0)
    finding = only(add_stacks(job, look((*WAITING, *HOST))))

    assert (finding.code, finding.culprits.ranks) == ("H101", [CULPRIT])
    assert finding.where[0].line == SLEEP


def test_files_as_people_have_them(tmp_path: Path) -> None:
    late().write(tmp_path)
    for rank in ALL:
        frames = ASLEEP if rank == CULPRIT else HOST
        lines = [f"    {one.function} ({one.file}:{one.line})" for one in frames]
        text = f'Process {70 + rank}: python train.py\nThread {70 + rank} (active): "MainThread"\n'
        (tmp_path / f"stack_rank_{rank}.txt").write_text(text + "\n".join(lines) + "\n")
    finding = only(diagnose_paths([tmp_path]))

    assert (finding.code, finding.culprits.ranks) == ("H101", [CULPRIT])
    assert finding.where[0].line == SLEEP
