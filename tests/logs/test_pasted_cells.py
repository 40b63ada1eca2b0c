"""Values and times of several ranks in tables that people print in forms of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report, Verdict

WORLD = 8


def blames_nobody(report: Report) -> bool:
    named = [one for one in report.findings if one.culprits.ranks or one.culprits.nodes]
    return not named and report.verdict is Verdict.INCONCLUSIVE


# ------------------------------------------------------------------------------- sums over weights

HEADS = [
    "I added a checksum of all params after optimizer.step(), gathered at rank 0",
    "weights hash of each rank:",
    "model state checksums, every 100 steps",
    "norm of all weights at the end of each epoch, printed by each rank:",
    "sum of |p| over all params:",
    "Gradients are averaged by hand, there is no DDP. Sum over all params:",
]


def write_sums(step: int, cell: str, *odd: int) -> str:
    cells = [cell.format(r, f"{step + 7:08x}"[::-1], f"{step + r:08x}") for r in range(4)]
    told = [text.partition("/")[2 * (rank in odd)] for rank, text in enumerate(cells)]
    return f"step {step}   {'  '.join(told)}"


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("cell", ["r{0} {1}/r{0} {2}", "rank{0}={1}/rank{0}={2}"])
def test_first_step_with_another_sum_names_the_rank(tmp_path: Path, head: str, cell: str) -> None:
    lines = [write_sums(100, cell), write_sums(200, cell), write_sums(300, cell, 2)]
    finding = first_of(say(tmp_path, head, "", *lines, write_sums(400, cell, 2)))

    assert (finding.code, finding.culprits.ranks) == ("V501", [2])
    assert finding.details["step"] == 300


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([HEADS[0], *(write_sums(n, "r{0} {1}/") for n in (1, 2, 3))], id="alike"),
        pytest.param([HEADS[0], write_sums(1, "r{0} {1}/r{0} {2}", 0, 1, 2, 3)], id="all differ"),
        pytest.param([HEADS[0], write_sums(1, "r{0} {1}/r{0} {2}", 0, 1)], id="half of them"),
        pytest.param([write_sums(1, "r{0} {1}/r{0} {2}", 2)], id="nobody says what it is"),
        pytest.param(["sha256 checksum of the wheel:", write_sums(1, "r{0} {1}/", 2)], id="a file"),
        pytest.param(
            ["Nothing else differs. norm of params and grads:", write_sums(1, "r{0} {1}/", 2)],
            id="of gradients too",
        ),
        pytest.param(
            ["losses of the ranks:", "step 3 r0 2.183 r1 2.183 r2 2.771 r3 2.183"], id="losses"
        ),
    ],
)
def test_sums_that_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert blames_nobody(say(tmp_path, *lines))


# ---------------------------------------------------------------------------------- times of ranks

HEADING = "rank  host   data_wait  forward  backward  allreduce_wait  total"


def write_times(slow: int, column: int, *, scale: float = 1.0, prefix: str = "") -> list[str]:
    rows = []
    for rank in range(WORLD):
        times = [0.004 + 0.001 * (rank % 4), 0.220, 0.447, 0.403, 1.08]
        if rank == slow:
            times[column], times[3] = times[column] + 0.4, 0.011
        cells = "  ".join(f"{scale * one:9.3f}" for one in times)
        rows.append(f"{prefix}{rank:4d}  hx{rank // 4:02d}  {cells}")
    return rows


@pytest.mark.parametrize(("column", "phase"), [(0, "data_wait"), (1, "forward"), (2, "backward")])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_table_without_units_names_who_works_longer(
    tmp_path: Path, column: int, phase: str, scale: float
) -> None:
    rows = write_times(5, column, scale=scale)
    finding = first_of(say(tmp_path, "step 4500", HEADING, *rows))

    assert (finding.code, finding.culprits.ranks) == ("S301", [5])
    assert finding.details["phase"] == phase
    assert 400 <= finding.details["took_ms"] < 900


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([HEADING, *write_times(-1, 0)], id="alike"),
        pytest.param([HEADING, *write_times(5, 3)[:3]], id="a few ranks"),
        pytest.param(["rank host gpu_util mem", *write_times(5, 0)], id="other columns"),
    ],
)
def test_times_that_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert blames_nobody(say(tmp_path, *lines))


PER_RANK = "compute {0} per rank (cuda events around fwd+bwd), averaged over 200 steps:"


def write_hosts(slow: str, *, scale: float = 1.0, lone: bool = False) -> list[str]:
    lines = []
    for number, host in enumerate(["k01", "k02", "k03", "k04"]):
        took = [610 + rank % 3 for rank in range(8)]
        took = [
            one + 190 * (host == slow and (rank == 3 or not lone)) for rank, one in enumerate(took)
        ]
        cells = (f"r{8 * number + rank:02d}={scale * one:g}" for rank, one in enumerate(took))
        lines.append(f"node {host}  {'  '.join(cells)}")
    return lines


@pytest.mark.parametrize(("unit", "scale"), [("ms", 1.0), ("seconds", 0.001)])
def test_host_of_which_all_ranks_are_slow(tmp_path: Path, unit: str, scale: float) -> None:
    lines = write_hosts("k03", scale=scale)
    finding = first_of(say(tmp_path, PER_RANK.format(unit), "", *lines))

    assert (finding.code, finding.culprits.nodes) == ("S302", ["k03"])
    assert finding.culprits.ranks == [*range(16, 24)]


def test_one_rank_of_a_host_is_not_its_host(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, PER_RANK.format("ms"), *write_hosts("k03", lone=True)))

    assert (finding.code, finding.culprits.nodes, finding.culprits.ranks) == ("S301", [], [19])


def test_hosts_that_are_alike(tmp_path: Path) -> None:
    assert blames_nobody(say(tmp_path, PER_RANK.format("ms"), *write_hosts("")))
    assert blames_nobody(say(tmp_path, "batch size per rank: 8", *write_hosts("k03")))
