"""What NCCL's RAS adds to verdicts, and what it tells alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.dumps import SCHEDULED, Dumps
from tests.diagnose.scenes import MODULE, Job, at
from tests.parse.ras_answers import HASH, HEAD, make_json, make_late_text, make_missing, make_text

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence, Report, Severity, Verdict
from whystuck.evidence.nodes.ras import RasStatus
from whystuck.parse.ras import parse_ras
from whystuck.pipeline import diagnose_paths

SITE = (at("/job/train.py", 22), MODULE)


def judge(dumps: Dumps, folder: Path, *answers: bytes) -> Report:
    """Judge a stall with answers of RAS."""
    job = Job().of_kind("stall")
    for rank in range(dumps.world):
        job.stands(rank, SITE, cpu_share=1.0)
    ras = tuple(parse_ras(one, artifact="n0/ras.json") for one in answers)
    return diagnose(replace(dumps.evidence(folder, job), ras=ras))


def pending(waiting: tuple[int, ...] = (0, 1, 2, 3)) -> Dumps:
    dumps = Dumps().op(range(4), "all_reduce", SITE, times=5)
    return dumps.op(waiting, "all_reduce", SITE, state=SCHEDULED)


def list_cited(report: Report) -> list[str]:
    cites = report.findings[0].because
    return [one.text.removeprefix("NCCL RAS: ") for one in cites if "NCCL RAS" in one.text]


@pytest.mark.parametrize("answer", [make_late_text(), make_json([41, 40, 41, 41])])
def test_late_rank_is_cited(answer: bytes, tmp_path: Path) -> None:
    report = judge(pending((0, 2, 3)), tmp_path, answer)

    assert report.findings[0].culprits.ranks == [1]
    assert list_cited(report) == [
        f"rank 1 issued 40 AllReduce of communicator 0x{HASH}, 3 others 41"
    ]


def test_even_job_is_cited_and_stays_open(tmp_path: Path) -> None:
    report = judge(pending(), tmp_path, make_json([41] * 4))
    finding = report.findings[0]

    assert (finding.code, finding.confidence) == ("H122", Confidence.POSSIBLE)
    assert list_cited(report) == [
        "the members of the communicator have issued the same number of collectives"
    ]


def test_error_of_the_system_is_the_network(tmp_path: Path) -> None:
    report = judge(pending(), tmp_path, make_json([41] * 4, async_errors={2: 2}))
    finding = report.findings[0]

    assert (finding.code, finding.confidence) == ("H122", Confidence.LIKELY)
    assert list_cited(report)[0] == (
        f"an asynchronous error of rank 2 in communicator 0x{HASH}: System error"
    )


def test_error_of_a_process_elsewhere_leaves_it_open(tmp_path: Path) -> None:
    report = judge(pending(), tmp_path, make_json([41] * 4, async_errors={2: 6}))

    assert report.findings[0].confidence is Confidence.POSSIBLE


def test_dead_processes_are_cited_first(tmp_path: Path) -> None:
    missing = [make_missing(3, 77, dead=True)]
    cited = list_cited(judge(pending((0, 1, 2)), tmp_path, make_json([41] * 3, missing=missing)))

    assert cited[0] == "process 77 on 10.0.0.2 is considered dead"
    assert cited[1] == f"no data from rank 3 of communicator 0x{HASH}"


def test_members_of_a_smaller_communicator_are_told_by_their_processes(tmp_path: Path) -> None:
    # The job has the processes 100 to 103; the members are its ranks 2 and 3, and one unknown.
    report = judge(pending(), tmp_path, make_json([7, 6, 7], pids=[102, 103, 999]))
    other = judge(pending(), tmp_path, make_json([7, 7, 6], pids=[102, 103, 999]))

    assert list_cited(report)[0].startswith("rank 3 issued 6 AllReduce")
    assert list_cited(other)[0].startswith("member 2 (process 999 on 127.0.0.1) issued 6 ")


def test_answer_that_knows_most_counts(tmp_path: Path) -> None:
    report = judge(pending((0, 2, 3)), tmp_path, make_text(comms=1), make_late_text())
    assert len(list_cited(report)) == 1

    more = make_text(comms=3)
    assert "3 communicators" in list_cited(judge(pending((0, 2, 3)), tmp_path, more))[0]


@pytest.mark.parametrize("name", ["pasted", "ras.txt", "status.log"])
def test_pasted_answer_alone_names_the_rank_and_is_not_sure(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(make_late_text())
    report = diagnose_paths([tmp_path / name])
    (finding,) = report.findings

    assert (finding.code, finding.culprits.ranks) == ("H101", [1])
    assert (finding.confidence, finding.severity) == (Confidence.POSSIBLE, Severity.WARNING)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert list_cited(report)


@pytest.mark.parametrize(
    "answer", [make_json([41] * 4), make_json([41, 41, 40, 40]), make_json([41, 40, 40, 40])]
)
def test_pasted_answer_that_names_no_few_ranks_blames_nobody(answer: bytes, tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_bytes(answer)
    report = diagnose_paths([tmp_path])

    assert report.findings == []
    assert report.verdict is Verdict.INCONCLUSIVE


def count(reduces: list[int], casts: list[int], **more: Any) -> bytes:
    """Make the JSON of a job by what each rank has issued of two kinds."""
    answer = json.loads(make_json(reduces, **more))
    for one, issued in zip(answer["communicators"][0]["ranks"], casts, strict=True):
        one["collective_counts"]["Broadcast"] = issued
    return json.dumps(answer).encode()


def test_rank_with_more_of_one_kind_and_fewer_of_another_calls_other_ops(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_bytes(count([41, 41, 40, 41], [9, 9, 10, 9]))
    (finding,) = diagnose_paths([tmp_path]).findings

    assert (finding.code, finding.culprits.ranks) == ("H105", [2])
    assert (finding.confidence, finding.severity) == (Confidence.POSSIBLE, Severity.WARNING)
    assert "10 Broadcast (3 others 9)" in finding.summary
    assert finding.victims.ranks == "0-1,3"


@pytest.mark.parametrize(
    "answer",
    [
        # Behind in both, as who is late is; ahead in both; half against half.
        count([41, 41, 40, 41], [9, 9, 8, 9]),
        count([41, 41, 42, 41], [9, 9, 10, 9]),
        count([41, 41, 40, 40], [9, 9, 10, 10]),
        count([41, 40], [9, 10]),
    ],
)
def test_rank_that_is_late_or_no_minority_calls_no_other_ops(answer: bytes, tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_bytes(answer)

    assert all(one.code != "H105" for one in diagnose_paths([tmp_path]).findings)


def test_pasted_answer_about_a_part_of_the_job_names_no_rank(tmp_path: Path) -> None:
    # Rank 1 of the smaller communicator may be any rank of the job.
    whole, part = (
        json.loads(make_json([9] * 8)),
        json.loads(make_json([7, 6, 7], pids=[900, 901, 902])),
    )
    whole["communicators"] += part["communicators"]
    (tmp_path / "ras.json").write_text(json.dumps(whole))
    report = diagnose_paths([tmp_path])
    (finding,) = report.findings

    assert (finding.culprits.ranks, finding.culprits.nodes) == ([], ["127.0.0.1"])
    assert "process 901" in finding.summary
    assert report.verdict is Verdict.INCONCLUSIVE


def make_part(*behind: int, groups: int = 1, size: int = 4) -> bytes:
    """Make the text of NCCL before 2.28.7 of a job of 8, with members behind in some of 4."""
    rows = (
        "    0         1         2         4         8         8   RUNNING      OK\n"
        f"    1         2         2         2         {size}         8   RUNNING  MISMATCH\n"
    )
    lines = "".join(
        f"#1-{group} ({group + 10:016x}) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        f"  {size - len(behind)} ranks have launched up to operation 41\n"
        + "".join(
            f"  Rank {rank} has launched up to operation 40 -- "
            f"GPU {rank} managed by process {900 + rank} on node 10.0.0.2\n"
            for rank in behind
        )
        + "\n"
        for group in range(groups)
    )
    return f"{HEAD}{rows}\nErrors\n======\n\nWarnings\n========\n\n{lines}".encode()


def test_text_about_a_part_of_the_job_names_the_process_and_its_host(tmp_path: Path) -> None:
    (tmp_path / "pasted").write_bytes(make_part(1))
    report = diagnose_paths([tmp_path])
    (finding,) = report.findings

    assert (finding.code, finding.confidence) == ("H101", Confidence.POSSIBLE)
    assert (finding.culprits.ranks, finding.culprits.nodes) == ([], ["10.0.0.2"])
    assert finding.summary == (
        "member 1 (process 901 on 10.0.0.2) of communicator 0xa issued 40 AllReduce, where 3 "
        "others issued 41, when NCCL RAS was asked"
    )
    assert report.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "answer", [make_part(1, 2), make_part(0, 1, 2), make_part(1, groups=2), make_part(1, size=2)]
)
def test_text_about_parts_of_the_job_that_leaves_it_open_names_nobody(
    answer: bytes, tmp_path: Path
) -> None:
    (tmp_path / "pasted").write_bytes(answer)

    assert diagnose_paths([tmp_path]).findings == []


def test_answer_that_is_cut_is_a_gap(tmp_path: Path) -> None:
    pending((0, 2, 3)).write(tmp_path)
    (tmp_path / "n0").mkdir()
    (tmp_path / "n0/ras.json").write_bytes(make_json([41] * 4)[:-50])
    report = diagnose_paths([tmp_path])

    assert report.findings[0].culprits.ranks == [1]
    assert [gap.what for gap in report.gaps if "RAS" in gap.reason] == ["ras.json"]


def test_status_without_communicators_says_nothing(tmp_path: Path) -> None:
    report = diagnose(replace(pending((0, 2, 3)).evidence(tmp_path), ras=(RasStatus("2.28"),)))

    assert list_cited(report) == []


Comm = tuple[tuple[int, ...], tuple[int, ...]]


def make_comms(world: int, *comms: Comm, per_host: int = 4, missing: int = -1) -> bytes:
    """Make an answer of a job with a group of all ranks, and some with counts for their ranks.

    Each host has the same pids, as containers do.
    """
    answer: dict[str, Any] = {}
    for members, counts in ((tuple(range(world)), (9,) * world), *comms):
        one = json.loads(make_json(counts))
        (comm,) = one["communicators"]
        for entry, rank in zip(comm["ranks"], members, strict=True):
            entry |= {"host": f"10.0.0.{rank // per_host}", "pid": 50 + rank % per_host}
        gone = [
            entry for entry, rank in zip(comm["ranks"], members, strict=True) if rank == missing
        ]
        comm["ranks"] = [entry for entry in comm["ranks"] if entry not in gone]
        comm["missing_ranks"] = [
            {name: entry[name] for name in ("rank", "host", "pid")}
            | {"status": {"unresponsive": True, "considered_dead": True}}
            for entry in gone
        ]
        answer = answer or one | {"communicators": []}
        answer["communicators"].append(comm)
    return json.dumps(answer).encode()


# Tensor parallel pairs, and the data parallel groups across them: rank 5 does not come. Rank 4
# waits for it, and ranks 0, 2 and 6 wait for rank 4.
CHAIN: tuple[Comm, ...] = (
    ((4, 5), (31, 30)),
    ((0, 2, 4, 6), (8, 8, 7, 8)),
    ((1, 3, 5, 7), (8, 8, 7, 8)),
)
ASLEEP = (at("/job/data.py", 50, "load"), at("/job/train.py", 12), MODULE)


def watch(answer: bytes, world: int, asleep: int = -1, kind: str = "stall") -> Report:
    """Judge stacks and RAS alone: hosts spin in a line of their own, one may be asleep."""
    job = Job(world).of_kind(kind)
    for rank in range(world):
        if rank == asleep:
            job.stands(rank, ASLEEP)
        else:
            job.stands(rank, SITE, cpu_share=1.0)
    evidence = job.evidence()
    return diagnose(replace(evidence, ras=(parse_ras(answer, artifact="n0/ras.json"),)))


def test_end_of_a_chain_of_waits_is_named(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_bytes(make_comms(8, *CHAIN))
    (finding,) = diagnose_paths([tmp_path]).findings

    assert (finding.code, finding.culprits.ranks) == ("H101", [5])
    assert finding.confidence is Confidence.POSSIBLE
    assert finding.victims.ranks == "0-4,6-7"


def test_pair_alone_or_a_ring_of_waits_names_nobody(tmp_path: Path) -> None:
    ring: tuple[Comm, ...] = (
        ((0, 1, 2), (8, 7, 8)),
        ((1, 3, 4), (8, 7, 8)),
        ((3, 0, 5), (8, 7, 8)),
    )
    for name, answer in (
        ("pair", make_comms(8, ((4, 5), (31, 30)))),
        ("ring", make_comms(8, *ring)),
    ):
        (tmp_path / name).write_bytes(answer)
        assert diagnose_paths([tmp_path / name]).findings == []


def test_stall_without_records_names_the_line_of_the_rank_that_is_behind() -> None:
    report = watch(make_comms(8, *CHAIN), 8, asleep=5)
    finding = report.findings[0]

    assert (finding.code, finding.culprits.ranks) == ("H101", [5])
    assert finding.confidence is Confidence.LIKELY
    assert finding.where[0].line == 50
    assert report.verdict is Verdict.STUCK
    assert list_cited(report)


def test_stall_without_records_and_even_counts_names_nobody() -> None:
    report = watch(make_comms(4), 4, asleep=1)

    assert not any(finding.culprits.ranks for finding in report.findings)


def test_snapshot_without_records_stays_open() -> None:
    report = watch(make_comms(8, *CHAIN), 8, asleep=5, kind="snapshot")

    assert report.verdict is Verdict.INCONCLUSIVE
    assert all(one.confidence is Confidence.POSSIBLE for one in report.findings)
    assert [one.culprits.ranks for one in report.findings] == [[5]]


def test_rank_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_bytes(make_comms(8, missing=6))
    (finding,) = diagnose_paths([tmp_path]).findings

    assert (finding.code, finding.culprits.ranks) == ("H101", [6])
    assert "gave no answer" in finding.summary
    assert "is considered dead" in list_cited(diagnose_paths([tmp_path]))[0]


def test_half_of_the_ranks_that_do_not_answer_are_not_named(tmp_path: Path) -> None:
    whole = json.loads(make_json([9, 9], missing=[make_missing(2, 77), make_missing(3, 78)]))
    (tmp_path / "ras.json").write_text(json.dumps(whole))

    assert diagnose_paths([tmp_path]).findings == []
