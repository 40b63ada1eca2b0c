"""Counters of errors of ports: the one that counts them where others do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

NAMES = ("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors")
WELL, BAD = (0, 0, 1, 0), (65535, 255, 48, 21877)


def by_perfquery(card: str, counts: tuple[int, ...]) -> list[str]:
    rows = [f"{name}:{'.' * (32 - len(name))}{n}" for name, n in zip(NAMES, counts, strict=True)]
    return [f"$ perfquery -x -C {card} -P 1", "# Port counters: Lid 12 port 1", *rows]


def by_loop(card: str, counts: tuple[int, ...]) -> list[str]:
    return [f"## {card}", *by_perfquery(card, counts)[2:]]


def by_files(card: str, counts: tuple[int, ...]) -> list[str]:
    path = f"/sys/class/infiniband/{card}/ports/1/counters"
    names = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors")
    return [f"{path}/{name}:{count}" for name, count in zip(names, counts, strict=True)]


def by_one_line(card: str, counts: tuple[int, ...]) -> list[str]:
    return [f"{card} " + " ".join(f"{a}={b}" for a, b in zip(NAMES, counts, strict=True))]


FORMS = [by_perfquery, by_loop, by_files, by_one_line]


@pytest.mark.parametrize("form", FORMS)
def test_port_that_counts_errors_is_named(tmp_path: Path, form: object) -> None:
    write = form if callable(form) else by_loop
    lines = ["[b07-gpu2 ~]# for d in mlx5_0 mlx5_1 mlx5_3; do perfquery -x $d 1 | egrep Link; done"]
    for card in ("mlx5_0", "mlx5_1", "mlx5_3"):
        lines += write(card, BAD if card == "mlx5_3" else WELL)

    finding = first_of(say(tmp_path, *lines))
    assert (finding.code, finding.details["port"]) == ("N410", "mlx5_3")
    assert "mlx5_3" not in finding.culprits.nodes


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (12, 3, 2, 7), BAD])
def test_ports_that_count_alike_are_not_told(tmp_path: Path, counts: tuple[int, ...]) -> None:
    lines = [line for card in ("mlx5_0", "mlx5_1") for line in by_perfquery(card, counts)]

    assert "N410" not in {one.code for one in say(tmp_path, *lines).findings}


def test_one_port_alone_tells_nothing(tmp_path: Path) -> None:
    assert say(tmp_path, *by_perfquery("mlx5_0", BAD)).findings == []


def by_ibstat(rates: tuple[int, ...]) -> list[str]:
    return [
        text
        for number, rate in enumerate(rates)
        for text in (f"CA 'mlx5_{number}'", "\t\tState: Active", f"\t\tRate: {rate}")
    ]


@pytest.mark.parametrize(
    ("rates", "counts", "is_told"),
    [
        ((400, 400, 200, 400), BAD, True),
        ((400, 400, 200, 400), WELL, False),  # a card for storage may be slower
        ((400, 400, 400, 400), BAD, False),
        ((400, 400, 400, 200), BAD, False),  # another card counts them
        ((400, 200), BAD, False),
    ],
)
def test_one_port_with_errors_that_is_slower_than_others_is_named(
    tmp_path: Path, rates: tuple[int, ...], counts: tuple[int, ...], *, is_told: bool
) -> None:
    lines = ["b07-gpu2$ ibstat", *by_ibstat(rates), *by_perfquery("mlx5_2", counts)]
    found = say(tmp_path, *lines).findings

    assert [one.code for one in found] == ["N410"] * is_told
    assert [one.details["port"] for one in found] == ["mlx5_2"] * is_told


COUNTS = (448921, 37, 6, 91204)
ODD = [
    "all_reduce_perf of any 2 nodes gives 360, except every pair with node {0}:",
    "all runs are well but those tests with {0}",
    "every pair with {0} is slow",
    "all pairs involving host {0} give less than half:",
]


@pytest.mark.parametrize("said", ODD)
def test_one_port_is_named_where_somebody_says_that_its_host_is_slow(
    tmp_path: Path, said: str
) -> None:
    shown = ["c19$ perfquery -x", *by_perfquery("", COUNTS)[1:]]
    finding = first_of(say(tmp_path, said.format("c19"), *shown))

    assert (finding.code, finding.culprits.nodes) == ("N410", ["c19"])


@pytest.mark.parametrize("counts", [WELL, (12, 3, 2, 7)])
def test_port_of_a_slow_host_that_counts_few_errors_is_not_told(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    shown = ["c19$ perfquery -x", *by_perfquery("", counts)[1:]]

    assert say(tmp_path, ODD[0].format("c19"), *shown).findings == []


@pytest.mark.parametrize(
    "said", [ODD[0].format("c20"), "every pair with c19 is fine", "all pairs are slow, c19 as well"]
)
def test_port_of_a_host_that_nobody_calls_slow_is_not_told(tmp_path: Path, said: str) -> None:
    shown = ["c19$ perfquery -x", *by_perfquery("", COUNTS)[1:]]

    assert say(tmp_path, said, *shown).findings == []


MATRIX = [
    "busbw GB/s",
    "         c17    c18    c19    c20",
    "c17      -      48.2   {0}    48.0",
    "c18      48.1   -      {0}    48.3",
    "c19      {0}    {0}    -      {0}",
    "c20      48.0   48.4   {0}    -",
]
ENDS = [(one, other) for one in ("c17", "c18", "c19", "c20") for other in ("c18", "c19", "c20")]
PAIRS = [
    line
    for one, other in ENDS
    if one < other
    for line in (
        f"--- {one} <-> {other} ---",
        f"# Avg bus bandwidth    : {'{0}' if 'c19' in (one, other) else '48.2'} ",
    )
]


@pytest.mark.parametrize("table", [MATRIX, PAIRS], ids=["matrix", "rows"])
@pytest.mark.parametrize("prompt", ["c19$ perfquery -x", "[c19]$ perfquery -x | grep -i err"])
def test_port_of_the_host_whose_pairs_are_all_slow_is_why(
    tmp_path: Path, prompt: str, table: list[str]
) -> None:
    rows = [row.format(6.1) for row in table]
    report = say(tmp_path, *rows, "", prompt, *by_perfquery("", COUNTS)[1:])
    told = [(one.code, one.culprits.nodes) for one in report.findings if one.code[0] in "NS"]

    assert told == [("N410", ["c19"])]


@pytest.mark.parametrize(
    ("speed", "prompt", "counts", "code"),
    [
        (6.1, "c19$ perfquery -x", WELL, "S302"),
        (6.1, "c18$ perfquery -x", COUNTS, "S302"),
        (48.3, "c19$ perfquery -x", COUNTS, ""),
    ],
    ids=["no errors", "other host", "not slow"],
)
def test_port_that_does_not_make_pairs_slow_is_not_told(
    tmp_path: Path, speed: float, prompt: str, counts: tuple[int, ...], code: str
) -> None:
    rows = [row.format(speed) for row in MATRIX]
    report = say(tmp_path, *rows, "", prompt, *by_perfquery("", counts)[1:])

    assert [one.code for one in report.findings if one.code[0] in "NS"] == [code] * bool(code)
