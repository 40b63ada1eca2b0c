"""Copies from pageable memory, as tools list them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_kernel_shares import MATMUL, table
from tests.logs.test_told import first_of, say

MS = 1_000_000
HEAD = [
    " ** CUDA Async Memcpy with Pageable Memory (cuda_memcpy_async):",
    "",
    "The following APIs use PAGEABLE memory which causes operations to be executed synchronously.",
    "",
    " Duration (ns)   Start (ns)   Src Kind  Dst Kind  Bytes (MB)   PID    Device ID  API Name",
    " -------------  ------------  --------  --------  ----------  ------  ---------  ---------",
]
CSV = ["Duration (ns),Start (ns),Src Kind,Dst Kind,Bytes (MB),PID,Device ID,API Name"]
Copies = list[tuple[int, int, str]]


def by_table(copies: Copies, source: str = "Pageable") -> list[str]:
    rows = [
        f" {spent:>13,}  {start:>13,}  {source}  Device  {size:>10}  20411  0  cudaMemcpyAsync"
        for spent, start, size in copies
    ]
    return [*HEAD, *rows]


def by_csv(copies: Copies, source: str = "Pageable") -> list[str]:
    rows = [
        f"{spent},{start},{source},Device,{size.replace(',', '')},20411,0,cudaMemcpyAsync"
        for spent, start, size in copies
    ]
    return [*CSV, *rows]


FORMS = [by_table, by_csv]
STEPS = [(60 * MS, step * 500 * MS, "1,024.5") for step in range(4)]


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
@pytest.mark.parametrize("write", FORMS)
def test_copies_of_each_step_are_told(tmp_path: Path, write: object, prefix: str) -> None:
    lines = (by_csv if write is by_csv else by_table)(STEPS)
    finding = first_of(say(tmp_path, *(prefix + line for line in lines)))

    assert (finding.code, finding.details["share"]) == ("P507", 0.12)
    assert not finding.culprits.ranks


@pytest.mark.parametrize(
    "lines",
    [
        by_table(STEPS, "Pinned"),
        by_table([(1 * MS, step * 500 * MS, "12.5") for step in range(4)]),
        by_table([(60 * MS, step * 90 * MS, f"{step}7.5") for step in range(9)]),
        by_csv(STEPS[:2]),
        ["Src Kind is Pageable", "60,000,000  500,000,000  Pageable  Device  12.5  20411"],
    ],
    ids=["pinned", "short", "a model", "twice", "no table"],
)
def test_other_copies_are_not_told(tmp_path: Path, lines: list[str]) -> None:
    assert [one for one in say(tmp_path, *lines).findings if one.code == "P507"] == []


def test_share_of_copies_in_a_table_of_torch_is_told(tmp_path: Path) -> None:
    copies = "Memcpy HtoD (Pageable -> Device)"
    finding = first_of(say(tmp_path, *table([(MATMUL, 62.0), (copies, 31.0)])))

    assert finding.code == "P507"


@pytest.mark.parametrize(
    "rows",
    [
        [(MATMUL, 90.0), ("Memcpy HtoD (Pageable -> Device)", 2.0)],
        [(MATMUL, 60.0), ("Memcpy HtoD (Pinned -> Device)", 31.0)],
    ],
)
def test_share_of_few_or_pinned_copies_is_not_told(
    tmp_path: Path, rows: list[tuple[str, float]]
) -> None:
    report = say(tmp_path, *table(rows))

    assert [one for one in report.findings if one.code == "P507"] == []
