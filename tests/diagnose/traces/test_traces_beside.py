"""Traces among other evidence: they are told from it, and do not hide what stopped the job."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.parse.dumps.builders import as_json, make_dump, make_entry
from tests.read.test_tree import write, write_dumps

from whystuck.evidence.finding import Severity, Verdict
from whystuck.pipeline import diagnose_paths, read_evidence
from whystuck.read.sniffing import Kind, sniff

GROUPS = {"pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]}]}


def event(category: str, name: str, start: float, us: float, **args: Any) -> dict[str, Any]:
    shape = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1}
    return {**shape, "ts": start, "dur": us, "args": args}


def make_events() -> list[dict[str, Any]]:
    """Four steps that wait for data most of the time."""
    made = []
    for step in range(4):
        start = step * 10_000.0
        made += [
            event("user_annotation", f"ProfilerStep#{step}", start, 9_900),
            event(
                "user_annotation",
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                start + 1,
                8_000,
            ),
            event("cpu_op", "aten::mm", start + 8_100, 100),
            event("cuda_runtime", "cudaLaunchKernel", start + 8_110, 5, correlation=step + 1),
            event("kernel", "gemm", start + 8_200, 1_500, device=0, stream=7, correlation=step + 1),
        ]
    return made


def make_trace(rank: int, **keys: Any) -> dict[str, Any]:
    info = {"backend": "nccl", "rank": rank, "world_size": 4, **GROUPS}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": make_events(), **keys}


def test_a_dump_decides_and_traces_stand_beside(tmp_path: Path) -> None:
    write_dumps(tmp_path, [f"nccl_trace_rank_{rank}" for rank in range(4)])
    for rank in range(4):
        text = json.dumps(make_trace(rank))
        write(tmp_path / "traces" / f"worker_{31_000 + rank}.pt.trace.json", text)

    evidence = read_evidence(tmp_path)
    report = diagnose_paths([tmp_path])

    assert [header.rank for header in evidence.traces.ranks] == [0, 1, 2, 3]
    assert report.verdict is Verdict.STUCK
    assert report.findings[0].code[0] == "H"
    assert report.findings[0].culprits.ranks == [2]
    costs = [item for item in report.findings if item.code[0] == "P"]
    assert costs
    assert all(item.severity is not Severity.ERROR for item in costs)
    assert report.coverage.ranks_seen == 4
    assert {"flight recorder", "traces"} <= set(report.coverage.sources)


def test_traces_alone_tell_what_is_slow_and_miss_no_ranks(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(make_trace(3)).encode())
    (tmp_path / "any name.json.gz").write_bytes(packed)

    report = diagnose_paths([tmp_path])

    assert report.verdict is Verdict.SLOW
    assert {item.code for item in report.findings} >= {"P501"}
    assert not [gap for gap in report.gaps if gap.rank is not None]


def test_a_broken_trace_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "rank-1.json").write_text(json.dumps(make_trace(1)))
    (tmp_path / "rank-2.json").write_text('{"schemaVersion": 1, "deviceProperties": [], "tra')

    report = diagnose_paths([tmp_path])

    assert [gap.rank for gap in report.gaps if gap.what == "trace"] == [2]
    assert report.coverage.ranks_seen == 1


FILLER = {"otherData": {"text": "x" * 200_000}}


@pytest.mark.parametrize(
    "root",
    [
        {"traceEvents": make_events(), **FILLER},
        {**FILLER, "traceEvents": make_events()},
        {**FILLER, **make_trace(0)},
        {"distributedInfo": {"rank": 0, **GROUPS, "text": "x" * 200_000}, "traceEvents": []},
    ],
    ids=["first", "last", "behind other things", "behind groups"],
)
def test_events_may_be_anywhere_in_a_trace(tmp_path: Path, root: dict[str, Any]) -> None:
    (tmp_path / "x.json").write_text(json.dumps(root))

    evidence = read_evidence(tmp_path)

    assert len(evidence.traces) == 1


def test_a_dump_in_json_is_no_trace() -> None:
    dump = as_json(make_dump([make_entry("all_reduce", 1)]))

    assert sniff("rank0.json", dump) is Kind.FLIGHT_RECORDER
    assert sniff("rank0.json", json.dumps(make_trace(0)).encode()) is Kind.TRACE


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": 1}}',
        '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}',
        '[{"name": "no phase"}]',
    ],
)
def test_other_json_is_no_trace(text: str) -> None:
    assert sniff("some.json", text.encode()) is not Kind.TRACE
