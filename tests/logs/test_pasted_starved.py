"""Times of phases that show that all ranks wait for their data, and tools that show why."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

ITERATION = (
    " [2026-11-01 04:{0}:07] iteration     {0}00/  60000 | consumed samples: 23296 | elapsed time "
    "per iteration (ms): {1} | learning rate: 1.4E-04 | lm loss: 2.{0}E+00 |"
)
RANGES = """\
(min, max) time across ranks (ms):
    forward-backward ...............................: ({2:.2f}, {2:.2f})
    forward-compute ................................: (570.02, 574.88)
    batch-generator ................................: ({0:.2f}, {1:.2f})
    optimizer ......................................: (61.90, 62.31)"""


def megatron(*waits: tuple[float, float], is_told: bool = True) -> list[str]:
    lines: list[str] = []
    for k, (least, most) in enumerate(waits):
        lines += [ITERATION.format(10 + k, round(most + 2100, 1))] if is_told else []
        lines += RANGES.format(least, most, most + 1800).splitlines()
    return lines


SLOW, WELL = (9015.44, 9044.10), (11.20, 14.92)


def codes_of(report: Report) -> set[str]:
    return {one.code for one in report.findings}


@pytest.mark.parametrize("is_told", [True, False])
def test_batches_that_all_ranks_wait_for_are_told(tmp_path: Path, *, is_told: bool) -> None:
    finding = first_of(say(tmp_path, *megatron(WELL, SLOW, SLOW, is_told=is_told)))

    assert (finding.code, finding.culprits.ranks) == ("S309", [])
    assert "before it was 15 ms" in finding.summary


@pytest.mark.parametrize(
    "waits",
    [
        [WELL, WELL, WELL],
        [SLOW, WELL, WELL],
        [WELL, SLOW],
        # One rank alone waits for its data.
        [WELL, (12.0, 9044.1), (12.0, 9051.9)],
        [WELL, (712.0, 744.1), (712.0, 751.9)],
    ],
    ids=["well", "cold cache", "once", "one rank", "little"],
)
def test_batches_that_some_wait_for_are_not_told(
    tmp_path: Path, waits: list[tuple[float, float]]
) -> None:
    assert "S309" not in codes_of(say(tmp_path, *megatron(*waits)))


FORMS = [
    "rank={0} step=22{1}0 step_time=9.912 data={2:.3f} fwd=0.518 bwd=1.241",
    "[rank{0}]: iter 22{1}0 | data_time: {2:.2f} s | iter_time: 9.91 s | loss 2.1",
    "[rank{0}]: step 22{1}0 fwd {1}18.0 ms bwd 1241.0 ms dataloader {3:.1f} ms",
    "rank {0} step 22{1}0 data wait: {2:.2f}s compute: 1.52s",
    "[rank{0}]: time (ms) | fwd: 518.20 | bwd: 1241.10 | batch_load: {3:.2f} | step: 3.1",
]


def lines_of(form: str, waits: list[float]) -> list[str]:
    return [
        form.format(rank, step, wait, wait * 1000)
        for step in range(3)
        for rank, wait in enumerate(waits)
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_lines_of_ranks_that_all_wait_are_told(tmp_path: Path, form: str, ranks: int) -> None:
    report = say(tmp_path, *lines_of(form, [7.1 + 0.01 * rank for rank in range(ranks)]))

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("S309", [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("waits", [[0.1] * 4, [0.1, 0.1, 7.1, 0.1], [7.1, 7.2, 7.1, 0.1]])
def test_lines_of_which_one_rank_does_not_wait_are_not_told(
    tmp_path: Path, form: str, waits: list[float]
) -> None:
    assert "S309" not in codes_of(say(tmp_path, *lines_of(form, waits)))


TABLE = [
    "rank  data_ms  fwd_ms  bwd_ms",
    *(f"{rank}  {{{rank}}}  118.1  241.0" for rank in range(4)),
]


def test_columns_of_all_ranks_are_compared(tmp_path: Path) -> None:
    slow = [line.format(800.1, 801.2, 799.9, 802.0) for line in TABLE]
    one = [line.format(8.1, 801.2, 7.9, 8.0) for line in TABLE]

    assert first_of(say(tmp_path, *slow)).code == "S309"
    assert "S309" not in codes_of(say(tmp_path, *one))


def nfs(read_ms: float, ops: float = 17.8, *, is_new: bool = True) -> list[str]:
    more = "   avg queue (ms)          errors" if is_new else ""
    tail = "           2.511        0 (0.0%)" if is_new else ""
    head = "ops/s            kB/s           kB/op         retrans    avg RTT (ms)    avg exe (ms)"
    row = f"{ops:.3f}        4556.800         256.000        0 (0.0%)         {{0:.3f}}     874.001"
    return [
        "[root@n1 ~]# nfsiostat 5 2 /corpus",
        "filer3:/vol/corpus mounted on /corpus:",
        "           ops/s       rpc bklog",
        "          18.400           0.000",
        f"read:              {head}{more}",
        f"                  {row.format(read_ms)}{tail}",
        f"write:             {head}{more}",
        f"                   {row.format(0.0)}{tail}",
    ]


def iostat(read_ms: str, busy: str) -> list[str]:
    return [
        "$ ssh n3 iostat -x 5 2",
        (
            "Device            r/s     rkB/s   rrqm/s  %rrqm r_await rareq-sz     w/s     wkB/s   "
            "wrqm/s  %wrqm w_await wareq-sz     aqu-sz  %util"
        ),
        (
            f"sdb             91.00  11648.00     0.00   0.00 {read_ms}  128.00    0.00      0.00  "
            f"   0.00   0.00    0.00     0.00   31.20  {busy}"
        ),
    ]


@pytest.mark.parametrize("is_new", [True, False])
def test_mount_that_answers_late_is_told_with_the_wait(tmp_path: Path, *, is_new: bool) -> None:
    report = say(tmp_path, *megatron(WELL, SLOW, SLOW), *nfs(871.4, is_new=is_new))

    assert codes_of(report) == {"S309", "N402"}
    assert "/corpus takes 871 ms" in first_of(report).summary


def test_disk_that_answers_late_is_of_its_host(tmp_path: Path) -> None:
    (finding,) = say(tmp_path, *iostat("342.51", "99.80")).findings

    assert (finding.code, finding.culprits.nodes, finding.details["path"]) == (
        "N402",
        ["n3"],
        "sdb",
    )


@pytest.mark.parametrize(
    "lines", [nfs(3.1), nfs(412.0, ops=0.2), iostat("3.10", "99.80"), iostat("342.51", "2.10")]
)
def test_storage_that_is_well_or_rests_is_not_told(tmp_path: Path, lines: list[str]) -> None:
    assert "N402" not in codes_of(say(tmp_path, *lines))
