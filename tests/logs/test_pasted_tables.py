"""Tables of ranks in the layouts that people draw: a row for each rank, or a column for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.drawn import (
    DRAWN,
    Draw,
    Row,
    draw_bars,
    draw_blanks,
    draw_box,
    draw_csv,
    draw_markdown,
    draw_tabs,
)
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report, Verdict


def blames_nobody(report: Report) -> bool:
    return not [one for one in report.findings if one.culprits.ranks or one.culprits.nodes]


NAMES = ["{0}", "r{0}", "rank{0}", "rank {0}", "R{0}", "[rank{0}]", "gpu{0}"]

# ----------------------------------------------------------------------------- a row for each rank

PHASES = ["data", "h2d", "fwd", "bwd (compute)", "allreduce wait", "opt", "total"]
USUAL = [3.1, 1.9, 61.0, 118.2, 151.9, 6.0, 342.1]


def list_times(*slow: int, phase: int = 0, count: int = 8, waits: bool = True) -> list[list[float]]:
    table = []
    for rank in range(count):
        times = [one + 0.1 * (rank % 3) for one in USUAL]
        if rank in slow:
            times[phase] += 145
            times[4] -= 145 * waits
        table.append(times)
    return table


def write_times(
    table: list[list[float]], *, name: str = "{0}", head: str = "rank", form: str = "{0:.1f}"
) -> tuple[Row, list[Row]]:
    rows = [
        [name.format(rank), f"l40-{rank // 4}", *(form.format(one) for one in times)]
        for rank, times in enumerate(table)
    ]
    return [head, "host", *PHASES], rows


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("name", NAMES)
def test_row_that_works_longer_is_named(tmp_path: Path, draw: Draw, name: str) -> None:
    head, rows = write_times(list_times(5), name=name)
    finding = first_of(
        say(tmp_path, "profiler, 200 steps, all in ms", "", *draw(head, rows), "bye")
    )

    assert (finding.code, finding.culprits.ranks) == ("S301", [5])
    assert finding.details["phase"] == "data"
    assert finding.details["took_ms"] == pytest.approx(148.3)


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize(
    ("head", "form"),
    [("Rank", "{0:.1f} ms"), ("rank_id", "**{0:.1f}**"), ("RANK", "{0:.1f} (\u00b10.3)")],
)
def test_marks_and_units_in_cells(tmp_path: Path, draw: Draw, head: str, form: str) -> None:
    told, rows = write_times(list_times(2, phase=2), head=head, form=form)
    finding = first_of(say(tmp_path, *draw(told, rows)))

    assert (finding.code, finding.culprits.ranks) == ("S301", [2])
    assert finding.details["phase"] == "fwd"


@pytest.mark.parametrize("draw", DRAWN)
def test_units_in_a_row_of_their_own(tmp_path: Path, draw: Draw) -> None:
    table = [[one / 1000 for one in times] for times in list_times(6)]
    head, rows = write_times(table, form="{0:.4f}")
    units = ["-", "-", *("(s)" for _ in PHASES)]
    finding = first_of(say(tmp_path, *draw(head, [units, *rows])))

    assert (finding.code, finding.culprits.ranks) == ("S301", [6])
    assert finding.details["took_ms"] == pytest.approx(148.1, abs=0.2)


def test_what_points_at_a_row_is_no_cell(tmp_path: Path) -> None:
    head, rows = write_times(list_times(3))
    lines = draw_blanks(head, rows)
    lines[4] += "   <--- this one?"
    assert first_of(say(tmp_path, *lines)).culprits.ranks == [3]


def write_hosts(slow: str, ms: float, wait: float) -> list[str]:
    rows = []
    for rank in range(12):
        host = f"ice{rank // 4}"
        is_slow = host == slow
        rows.append(
            [f"{rank}", host, f"{101.2 + ms * is_slow:.1f}", f"{55.1 - wait * is_slow:.1f}"]
        )
    return draw_bars(["rank", "host", "fwd ms", "wait ms"], rows)


def test_one_of_three_hosts_for_which_the_others_wait(tmp_path: Path) -> None:
    report = say(tmp_path, *write_hosts("ice2", 18.0, 54.0))
    assert [(one.code, one.culprits.nodes) for one in report.findings] == [("S302", ["ice2"])]

    assert blames_nobody(say(tmp_path, *write_hosts("ice2", 18.0, 0.0)))
    assert blames_nobody(say(tmp_path, *write_hosts("ice2", 3.0, 54.0)))


@pytest.mark.parametrize("form", ["{0}-{1}", "r{0}-r{1}", "{0}..{1}", "ranks {0} to {1}"])
def test_rows_of_several_ranks_that_are_alike(tmp_path: Path, form: str) -> None:
    head = ["Rank", "fwd+bwd (ms)", "optimizer (ms)", "wait for others (ms)"]
    rows = [[form.format(0, 14), "612 +- 4", "31 +- 1", "188 +- 6"], ["15", "801", "31", "2"]]
    rows.append([form.format(16, 31), "613 +- 5", "31 +- 1", "187 +- 5"])
    assert first_of(say(tmp_path, *draw_blanks(head, rows))).culprits.ranks == [15]


def test_numbers_of_devices_beside_those_of_ranks(tmp_path: Path) -> None:
    head = ["gpu", "node", "rank", "input", "fwd", "bwd", "rs/ag exposed"]
    rows = [
        [str(rank % 2), f"hop-{rank // 2}", str(rank), "2.0", "140", "281", "61"]
        for rank in range(8)
    ]
    rows[3][4:] = ["162", "321", "1"]
    report = say(tmp_path, "mean over 50 steps, milliseconds:", *draw_bars(head, rows))
    assert first_of(report).culprits.ranks == [3]
    rows[3][6] = "61"
    assert blames_nobody(say(tmp_path, *draw_bars(head, rows)))


def test_rank_need_not_stand_first(tmp_path: Path) -> None:
    head, rows = write_times(list_times(3))
    swap = [[row[1], row[0], *row[2:]] for row in (head, *rows)]
    assert first_of(say(tmp_path, *draw_markdown(swap[0], swap[1:]))).culprits.ranks == [3]


@pytest.mark.parametrize(
    ("table", "change"),
    [
        pytest.param(list_times(), {}, id="alike"),
        pytest.param(list_times(0, 2, 5, 7), {}, id="half of them"),
        pytest.param(list_times(5, phase=4, waits=False), {}, id="one waits longer"),
        pytest.param(list_times(5, waits=False), {}, id="nobody waits for it"),
        pytest.param(list_times(5), {"host": "mem GB", "data": "util %"}, id="no time"),
        pytest.param(list_times(5), {"rank": "local_rank"}, id="no rank"),
        pytest.param(list_times(1, count=3), {}, id="three ranks"),
    ],
)
@pytest.mark.parametrize("draw", [draw_markdown, draw_blanks, draw_csv])
def test_rows_that_tell_nothing(
    tmp_path: Path, draw: Draw, table: list[list[float]], change: dict[str, str]
) -> None:
    head, rows = write_times(table)
    report = say(tmp_path, *draw([change.get(cell, cell) for cell in head], rows))
    assert blames_nobody(report)


@pytest.mark.parametrize(
    "said",
    ["first iteration incl. compile (ms)", "memory in GB", "timings of the warmup steps", "GiB:"],
)
def test_tables_of_other_things(tmp_path: Path, said: str) -> None:
    assert blames_nobody(say(tmp_path, said, *draw_markdown(*write_times(list_times(5)))))


def test_numbers_of_devices_of_several_hosts_are_no_ranks(tmp_path: Path) -> None:
    head, rows = write_times(list_times(5), name="gpu{0}", head="gpu")
    again = [[row[0], "other", *row[2:]] for row in write_times(list_times(), name="gpu{0}")[1]]
    assert blames_nobody(say(tmp_path, *draw_markdown(head, [*rows, *again])))
    assert blames_nobody(say(tmp_path, "WORLD_SIZE=16", *draw_markdown(head, rows)))


def test_rank_with_more_work_is_not_slow(tmp_path: Path) -> None:
    rows = [[str(rank), f"{6000 + 3000 * (rank == 2)}", "0"] for rank in range(8)]
    for row in rows:
        row[2] = f"{int(row[1]) / 20:.1f}"
    report = say(tmp_path, *draw_markdown(["rank", "tokens", "fwd ms"], rows))
    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S308", [])]


# -------------------------------------------------------------------------- a column for each rank

HEADS = ["r{0}", "rank{0}", "rank {0}", "R{0}", "GPU{0}", "rank_{0}"]


def turn(head: Row, rows: Sequence[Row], name: str, first: str = "phase") -> tuple[Row, list[Row]]:
    """Make columns of rows, without the host."""
    told = [first, *(name.format(rank) for rank in range(len(rows)))]
    return told, [[head[at], *(row[at] for row in rows)] for at in range(2, len(head))]


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("name", HEADS)
def test_column_that_works_longer_is_named(tmp_path: Path, draw: Draw, name: str) -> None:
    head, rows = turn(*write_times(list_times(5, phase=3)), name)
    finding = first_of(say(tmp_path, "phases (ms), mean of 100 steps:", *draw(head, rows)))

    assert (finding.code, finding.culprits.ranks) == ("S301", [5])
    assert finding.details["phase"] == "bwd (compute)"


@pytest.mark.parametrize("draw", [draw_blanks, draw_markdown])
def test_nothing_need_stand_above_the_names_of_rows(tmp_path: Path, draw: Draw) -> None:
    head, rows = turn(*write_times(list_times(5)), "rank{0}", "")
    assert first_of(say(tmp_path, *draw(head, rows))).culprits.ranks == [5]


@pytest.mark.parametrize("word", ["p50", "mean", "avg"])
def test_columns_of_the_middle_of_each_rank(tmp_path: Path, word: str) -> None:
    head, rows = turn(*write_times(list_times(3, count=4)), f"{word} r{{0}}")
    assert first_of(say(tmp_path, *draw_blanks(head, rows))).culprits.ranks == [3]


def test_numbers_of_ranks_beside_that_word(tmp_path: Path) -> None:
    head, rows = turn(*write_times(list_times(5)), "{0}", "rank")
    assert first_of(say(tmp_path, *draw_bars(head, rows))).culprits.ranks == [5]
    assert blames_nobody(say(tmp_path, *draw_bars(["epoch", *head[1:]], rows)))


# ------------------------------------------------------------------------------ work and its times

WORK = [
    [8120, 7733, 15902, 8011],
    [7902, 14480, 8208, 7690],
    [9011, 8870, 8402, 12033],
    [16110, 8015, 9120, 7011],
    [8122, 8204, 8300, 15544],
]


def write_work(rates: Sequence[float], head: str, cell: str) -> tuple[Row, list[Row]]:
    names = ["step", *(head.format(rank) for rank in range(4))]
    rows = []
    for number, work in enumerate(WORK):
        times = [one / rate for one, rate in zip(work, rates, strict=True)]
        worst = times.index(max(times))
        told = [
            cell.format(one, ms) + " *" * (rank == worst)
            for rank, (one, ms) in enumerate(zip(work, times, strict=True))
        ]
        rows.append([str(501 + number), *told])
    return names, rows


@pytest.mark.parametrize("draw", [draw_markdown, draw_bars, draw_box, draw_tabs])
@pytest.mark.parametrize(
    ("head", "cell"),
    [
        ("r{0}: tok / ms", "{0} / {1:.0f}"),
        ("rank {0} (tokens / ms)", "{0} / {1:.1f}"),
        ("R{0} samples/ms", "{0}/{1:.1f}"),
    ],
)
def test_times_that_follow_the_work(tmp_path: Path, draw: Draw, head: str, cell: str) -> None:
    report = say(tmp_path, *draw(*write_work([20, 20, 20, 20], head, cell)))
    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S308", [])]


def test_times_and_work_in_columns_of_their_own(tmp_path: Path) -> None:
    head = ["iter", *(f"r{rank}_ms" for rank in range(4)), *(f"r{rank}_tok" for rank in range(4))]
    rows = [
        [str(11 + at), *(f"{one / 20:.0f}" for one in work), *map(str, work)]
        for at, work in enumerate(WORK)
    ]
    report = say(tmp_path, *draw_blanks(head, rows))
    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S308", [])]


@pytest.mark.parametrize(
    ("form", "scale"),
    [
        ("r{0} {1}/{2:.2f}", 0.001),
        ("rank{0}={1} tok / {2:.1f} ms", 1.0),
        ("r{0}: {1}@{2:.3f}s", 0.001),
    ],
)
def test_work_of_all_ranks_in_a_line(tmp_path: Path, form: str, scale: float) -> None:
    lines = [
        f"step {88 + at}: "
        + " ".join(form.format(rank, one, scale * one / 20) for rank, one in enumerate(work))
        for at, work in enumerate(WORK)
    ]
    report = say(tmp_path, "samples per rank and compute time:", *lines)
    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S308", [])]


def test_one_that_takes_longer_for_its_work_is_no_imbalance(tmp_path: Path) -> None:
    told = write_work([20, 20, 13, 20], "r{0}: tok / ms", "{0} / {1:.0f}")
    assert "S308" not in [one.code for one in say(tmp_path, *draw_bars(*told)).findings]


# ------------------------------------------------------------------------------------------- sums

SUMS = "checksum of all params (sum of |p| in fp64), every 500 steps:"


def write_sums(*odd: int, since: int = 3, form: str = "{0:.6f}") -> list[Row]:
    rows = []
    for number in range(6):
        usual = 381220.104417 + 487.31 * number
        cells = [usual + 0.37 * (rank in odd and number >= since) for rank in range(6)]
        rows.append([str(500 * number), *(form.format(one) for one in cells)])
    return rows


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("name", HEADS)
def test_column_with_other_sums(tmp_path: Path, draw: Draw, name: str) -> None:
    head = ["step", *(name.format(rank) for rank in range(6))]
    finding = first_of(say(tmp_path, SUMS, "", *draw(head, write_sums(2))))

    assert (finding.code, finding.culprits.ranks) == ("V501", [2])
    assert finding.details["step"] == 1500


@pytest.mark.parametrize("name", ["param_sum", "model checksum", "weight hash", "params_md5"])
def test_row_with_another_sum(tmp_path: Path, name: str) -> None:
    rows = [[f"r{rank}", "8f1c22d0" if rank != 4 else "8f1c22d1", "1.8"] for rank in range(6)]
    finding = first_of(say(tmp_path, *draw_markdown(["rank", name, "loss"], rows)))
    assert (finding.code, finding.culprits.ranks) == ("V501", [4])


@pytest.mark.parametrize("name", ["{0}", "step {0}", "@{0}"])
@pytest.mark.parametrize("draw", DRAWN)
def test_column_for_each_step(tmp_path: Path, draw: Draw, name: str) -> None:
    rows = write_sums(3, since=4)
    head = ["rank", *(name.format(row[0]) for row in rows)]
    turned = [[f"r{rank}", *(row[1 + rank] for row in rows)] for rank in range(6)]
    finding = first_of(say(tmp_path, SUMS, *draw(head, turned)))

    assert (finding.code, finding.culprits.ranks) == ("V501", [3])
    assert finding.details["step"] == 2000


def test_row_for_each_tensor(tmp_path: Path) -> None:
    head = ["tensor", *(f"rank{rank}" for rank in range(4))]
    rows = [[f"layers.{at}.mlp.fc1.weight", *("8f1c22d0",) * 4] for at in range(3)]
    rows[1][2] = "8f1c22d1"
    rows.append(["local loss", "1.1", "1.2", "1.1", "1.1"])
    finding = first_of(say(tmp_path, "md5 of each weight tensor", *draw_markdown(head, rows)))
    assert (finding.code, finding.culprits.ranks) == ("V501", [1])


def test_row_for_each_step_and_rank(tmp_path: Path) -> None:
    rows = [[row[0], str(rank), row[1 + rank]] for row in write_sums(4) for rank in range(6)]
    finding = first_of(say(tmp_path, *draw_csv(["step", "rank", "param_sum"], rows)))
    assert (finding.culprits.ranks, finding.details["step"]) == ([4], 1500)


def test_sum_of_times_is_none_of_weights(tmp_path: Path) -> None:
    rows = [[f"r{rank}", "3.0", "61.0", "64.0" if rank != 2 else "64.1"] for rank in range(6)]
    assert blames_nobody(say(tmp_path, *draw_markdown(["rank", "data", "fwd", "sum"], rows)))


def test_ranks_without_weights_are_no_others(tmp_path: Path) -> None:
    rows = [[str(rank), "8f1c22d0" if rank == 0 else "00000000"] for rank in range(6)]
    assert blames_nobody(say(tmp_path, *draw_markdown(["rank", "model_hash"], rows)))


def test_stages_of_a_pipeline_have_work_of_their_own(tmp_path: Path) -> None:
    rows = [[str(rank), str(rank // 2), "3.0", "61.0"] for rank in range(8)]
    rows[0][3] = rows[1][3] = "99.0"
    head = ["rank", "stage", "data", "fwd"]
    assert blames_nobody(say(tmp_path, *draw_markdown(head, rows)))
    rows[1][3] = "61.0"
    assert first_of(say(tmp_path, *draw_markdown(head, rows))).culprits.ranks == [0]


def test_devices_of_a_job_of_several_hosts(tmp_path: Path) -> None:
    head, rows = turn(*write_times(list_times(5)), "GPU{0}")
    lines = draw_markdown(head, rows)
    assert first_of(say(tmp_path, "8x A100, ms", *lines)).culprits.ranks == [5]
    assert blames_nobody(say(tmp_path, "4 nodes with 8x A100, ms. This is node 2:", *lines))


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        pytest.param(SUMS, write_sums(), id="alike"),
        pytest.param(SUMS, write_sums(0, 1, 2), id="half of them"),
        pytest.param("local losses of the ranks:", write_sums(2), id="losses"),
        pytest.param("checksums of the input files of each rank", write_sums(2), id="files"),
        pytest.param("sums over the weights of each shard (FSDP)", write_sums(2), id="shards"),
        pytest.param("local grad norms", write_sums(2), id="gradients before they are summed"),
    ],
)
def test_sums_that_tell_nothing(tmp_path: Path, head: str, rows: list[Row]) -> None:
    names = ["step", *(f"r{rank}" for rank in range(6))]
    report = say(tmp_path, head, *draw_blanks(names, rows))
    assert blames_nobody(report)
    assert report.verdict is Verdict.INCONCLUSIVE


def test_sums_that_differ_by_their_order_are_alike(tmp_path: Path) -> None:
    rows = write_sums()
    for number, row in enumerate(rows):
        rows[number] = [row[0], *(f"{cell[:-1]}{rank}" for rank, cell in enumerate(row[1:]))]
    names = ["step", *(f"r{rank}" for rank in range(6))]
    assert blames_nobody(say(tmp_path, SUMS, *draw_blanks(names, rows)))
