"""Counters and clocks of several hosts or containers in one text: the one that is held up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.drawn import DRAWN, Draw, draw_blanks
from tests.logs.test_told import first_of, say

SHOW = "$ kubectl exec {0} -- cat /sys/fs/cgroup/cpu.stat"


def stat(name: str, periods: int | None, throttled: int) -> list[str]:
    told = [] if periods is None else [f"nr_periods {periods}"]
    return [SHOW.format(name), "usage_usec 41", *told, f"nr_throttled {throttled}"]


@pytest.mark.parametrize("other", [None, 41000], ids=["throttled alone", "both"])
@pytest.mark.parametrize("is_first", [False, True])
def test_each_container_is_counted_by_itself(
    tmp_path: Path, other: int | None, *, is_first: bool
) -> None:
    held, free = stat("slow-master-0", 27110, 26904), stat("fast-master-0", other, 0)
    finding = first_of(say(tmp_path, *(held + free if is_first else free + held)))

    assert finding.code == "S306"
    assert "99 %" in finding.summary


def test_counters_of_two_containers_are_no_pair(tmp_path: Path) -> None:
    lines = [*stat("a-0", 27110, 0), "some words", "more words", *stat("b-0", None, 26904)]

    assert say(tmp_path, *lines).findings == []


COLUMNS = "index,temperature.gpu,power.draw,clocks.sm,utilization.gpu,clocks_event_reasons.active"
ASKS = [
    f"$ pdsh -w w[1-4] nvidia-smi --query-gpu={COLUMNS} --format=csv,noheader | sort",
    f"$ clush -w w[1-4] nvidia-smi --query-gpu={COLUMNS} --format=csv,noheader,nounits",
]
ROW = "{0}: {1}, {2}, 641.33 W, {3} MHz, 100 %, {4}"
WELL, HOT = ("60", "1755", "0x0000000000000004"), ("87", "960", "0x0000000000000068")


def rows(hot: set[tuple[str, int]]) -> list[str]:
    return [
        ROW.format(host, index, *(HOT if (host, index) in hot else WELL))
        for host in ("w1", "w2", "w3", "w4")
        for index in range(4)
    ]


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("place", [("w1", 0), ("w3", 1), ("w4", 3)])
def test_device_of_one_of_several_hosts_is_slow(
    tmp_path: Path, ask: str, place: tuple[str, int]
) -> None:
    lines = rows({place})
    if "nounits" in ask:
        lines = [line.replace(" W,", ",").replace(" MHz", "").replace(" %", "") for line in lines]
    finding = first_of(say(tmp_path, ask, *lines))

    assert (finding.code, finding.culprits.nodes) == ("N413", [place[0]])
    assert f"device {place[1]}" in finding.summary


def test_devices_of_several_hosts_that_are_alike_are_well(tmp_path: Path) -> None:
    assert say(tmp_path, ASKS[0], *rows(set())).findings == []


ONE_HOST = [
    "$ nvidia-smi --query-gpu=index,temperature.gpu,clocks.sm,utilization.gpu --format=csv",
    "index, temperature.gpu, clocks.current.sm [MHz], utilization.gpu [%]",
    *(f"{index}, 58, {855 if index == 2 else 1755} MHz, 100 %" for index in range(4)),
]


@pytest.mark.parametrize(
    ("said", "ranks"),
    [
        ("my own timers (ms), local_rank == gpu index:", [2]),
        ("timers of each process, rank = GPU id, in ms", [2]),
        ("(the local rank is the GPU number here)", [2]),
        ("rank equals device index", [2]),
        ("Rank r uses GPU r.", [2]),
        ("(rank k runs on cuda:k)", [2]),
        ("rank i <-> gpu i, as always", [2]),
        ("GPU n belongs to rank n", [2]),
        ("local rank x is on device x", [2]),
        ("ranks are mapped 1:1 to GPUs", [2]),
        ("rank i does not use GPU i", []),
        ("rank i uses GPU j", []),
        ("ranks are not mapped 1:1 to GPUs", []),
        ("rank != gpu index on this host", []),
        ("group_rank == gpu index", []),
        ("the rank is not the gpu index", []),
    ],
)
@pytest.mark.parametrize("prefix", ["", "trainer-0 | "])
def test_rank_of_a_slow_device_is_what_somebody_says(
    tmp_path: Path, said: str, ranks: list[int], prefix: str
) -> None:
    report = say(tmp_path, *(f"{prefix}{line}" for line in ("slow since today", *ONE_HOST, said)))

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("N413", ranks)


@pytest.mark.parametrize(
    "other",
    ["[rank7]: step 12 loss 2.1", "rank 6: ProcessGroupNCCL destroyed"],
)
def test_local_rank_of_one_of_several_hosts_is_no_rank(tmp_path: Path, other: str) -> None:
    report = say(tmp_path, "[rank7]: step 11 loss 2.2", other, *ONE_HOST, "local_rank == gpu index")

    assert first_of(report).culprits.ranks == []


NAMED = [
    "[2025-07-22 16:40:11] GPU relative performance:",
    " Rank=2 Node=hgx21 Score=0.62",
    " Rank=0 Node=hgx21 Score=0.97",
]


def test_throttled_device_says_why_its_rank_is_slow(tmp_path: Path) -> None:
    report = say(tmp_path, *NAMED, "Rank r uses GPU r", *ONE_HOST)
    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("N413", [2])]

    other = say(
        tmp_path,
        *NAMED,
        "Rank r uses GPU r",
        *(
            line.replace("855", "1755")
            if line.startswith("2,")
            else line.replace("3, 58, 1755", "3, 58, 855")
            for line in ONE_HOST
        ),
    )
    assert {(one.code, *one.culprits.ranks) for one in other.findings} == {("N413", 3), ("S301", 2)}


CLOCKS = ["GPU", "Temp", "sclk", "Power"]


def write_clocks(
    *slow: int, heat: str = "104C", clock: str = "800Mhz", index: str = "{0}"
) -> list[list[str]]:
    well = ["61C", "1700Mhz", "298W"]
    return [[index.format(at), *([heat, clock, "162W"] if at in slow else well)] for at in range(8)]


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize(
    ("head", "ranks"),
    [
        (CLOCKS, []),
        (["gpu", "temp (C)", "SM clock", "power (W)"], []),
        (["rank", "Temperature", "GPU clock", "Power"], [5]),
        (["Rank", "temp", "clock (MHz)", "power"], [5]),
    ],
)
def test_table_of_clocks(tmp_path: Path, draw: Draw, head: list[str], ranks: list[int]) -> None:
    finding = first_of(say(tmp_path, *draw(head, write_clocks(5))))
    assert (finding.code, finding.culprits.ranks) == ("N413", ranks)
    assert finding.details["devices"] == [5]


def test_device_of_a_table_is_the_rank_that_somebody_says(tmp_path: Path) -> None:
    lines = draw_blanks(CLOCKS, write_clocks(5, index="gpu{0}"))
    assert first_of(say(tmp_path, "one node, rank i = GPU i", *lines)).culprits.ranks == [5]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(write_clocks(), id="alike"),
        pytest.param(write_clocks(5, heat="41C"), id="one is idle"),
        pytest.param(write_clocks(5, clock="1640Mhz"), id="a little slower"),
    ],
)
def test_clocks_that_tell_nothing(tmp_path: Path, rows: list[list[str]]) -> None:
    assert say(tmp_path, *draw_blanks(CLOCKS, rows)).findings == []


MASKS = "clocks.sm,temperature.gpu,clocks_event_reasons.active"
OLD_MASKS = "clocks.gr,temperature.gpu,clocks_throttle_reasons.active"
AROUND = ["slower since this morning, nothing was changed", "I looked at all the nodes:"]


def mask_rows(host: str, *, hot: bool, index: bool = True) -> list[str]:
    told = "915 MHz, 90, 0x0000000000000068" if hot else "1755 MHz, 61, 0x0000000000000004"
    return [f"{f'{at}, ' if index else ''}{told}" for at in range(2)]


@pytest.mark.parametrize("columns", [MASKS, OLD_MASKS])
@pytest.mark.parametrize("index", [True, False])
def test_bits_of_reasons_tell_the_host(tmp_path: Path, columns: str, *, index: bool) -> None:
    asked = f"{'index,' * index}{columns}"
    text = [*AROUND, f'$ pdsh -w w[1-3] "nvidia-smi --query-gpu={asked} --format=csv,noheader"']
    for host in ("w1", "w2", "w3"):
        lines = mask_rows(host, hot=host == "w2", index=index)
        text += [*(f"{host}: {line}" for line in lines), "..."]
    finding = first_of(say(tmp_path, *text, "(the same on the others)", "what can I do?"))

    assert (finding.code, finding.culprits.nodes, finding.culprits.ranks) == ("N413", ["w2"], [])
    assert finding.details["devices"] == [0, 1]
    assert "HW Thermal Slowdown" in finding.summary


@pytest.mark.parametrize(
    "ask",
    [
        "$ for n in w1 w2 w3; do echo == $n; ssh $n nvidia-smi --query-gpu=index,{0}; done",
        "$ pdsh -w w[1-3] nvidia-smi --query-gpu=index,{0} --format=csv,noheader | dshbak -c",
    ],
)
def test_host_of_rows_stands_above_them(tmp_path: Path, ask: str) -> None:
    text = [*AROUND, ask.format(MASKS)]
    for host in ("w1", "w2", "w3"):
        head = [f"== {host}"] if "echo" in ask else ["-" * 16, host, "-" * 16]
        text += [*head, *mask_rows(host, hot=host == "w3")]
    finding = first_of(say(tmp_path, *text))

    assert (finding.code, finding.culprits.nodes) == ("N413", ["w3"])


SECTION = [
    "        HW Slowdown                                    : Active",
    "            HW Thermal Slowdown                        : {0}",
    "            HW Power Brake Slowdown                    : Not Active",
]


@pytest.mark.parametrize(
    ("head", "node"),
    [
        ("w7 nvidia-smi -q -d PERFORMANCE:", ["w7"]),
        ("on w7: nvidia-smi -q -d PERFORMANCE", ["w7"]),
        ("root@w7:~# nvidia-smi -q -d PERFORMANCE", ["w7"]),
        ("$ ssh w7 nvidia-smi -q -d PERFORMANCE", ["w7"]),
        ("$ nvidia-smi -q -d PERFORMANCE", []),
    ],
)
def test_active_slowdown_is_of_the_host_that_was_asked(
    tmp_path: Path, head: str, node: list[str]
) -> None:
    finding = first_of(
        say(tmp_path, "steps are slow", head, *(line.format("Active") for line in SECTION))
    )

    assert (finding.code, finding.culprits.nodes) == ("N413", node)


def test_slowdown_that_is_not_active_is_none(tmp_path: Path) -> None:
    lines = [line.replace(": Active", ": Not Active") for line in SECTION]
    assert say(tmp_path, "on w7: nvidia-smi -q", *lines).findings == []


def test_reasons_of_power_and_of_idle_devices_are_none(tmp_path: Path) -> None:
    text = [f"$ pdsh -w w[1-3] nvidia-smi --query-gpu=index,{MASKS} --format=csv,noheader"]
    text += [f"w{host}: {at}, 1755 MHz, 61, 0x0000000000000004" for host in (1, 2) for at in (0, 1)]
    text += [f"w3: {at}, 345 MHz, 33, 0x0000000000000001" for at in (0, 1)]
    assert say(tmp_path, *AROUND, *text).findings == []


HEADINGS = [
    "fwd+bwd per rank (ms, mean of 200 steps, before the all-reduce):",
    "forward per rank in ms",
    "compute ms per rank",
]
CELLS = ["r{0} {1}", "rank{0} {1}", "r{0}={1}"]


@pytest.mark.parametrize("heading", HEADINGS)
@pytest.mark.parametrize("cell", CELLS)
def test_slow_rank_of_a_list_has_the_slow_device_of_its_number(
    tmp_path: Path, heading: str, cell: str
) -> None:
    times = [1187 if rank == 2 else 410 + rank for rank in range(4)]
    row = "  ".join(cell.format(rank, ms) for rank, ms in enumerate(times))
    finding = first_of(say(tmp_path, heading, row, *ONE_HOST))

    assert (finding.code, finding.culprits.ranks) == ("N413", [2])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([HEADINGS[0], "r0 410  r1 411  r2 409  r3 412"], id="alike"),
        pytest.param([HEADINGS[0], "r0 410  r1 1187  r2 409  r3 412"], id="another one"),
        pytest.param(["retries per rank (mean of 200 steps):", "r0 1  r1 1  r2 9  r3 1"], id="no"),
        pytest.param(["forward per rank is fine", "r0 1  r1 1  r2 9  r3 1"], id="no unit"),
        pytest.param(["r0 410  r1 411  r2 1187  r3 412"], id="no heading"),
    ],
)
def test_list_that_does_not_name_the_slow_device_blames_no_rank(
    tmp_path: Path, lines: list[str]
) -> None:
    report = say(tmp_path, *lines, *ONE_HOST)

    found = [one for one in report.findings if one.code == "N413"]
    assert found
    assert all(not one.culprits.ranks for one in found)
