"""A rank that still prepares while others wait for it at its first collective."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import say

GAVE_UP = (
    "[rank{0}]: torch.distributed.DistBackendError: [{0}] is setting up NCCL communicator and "
    "retrieving ncclUniqueId from [0] via c10d key-value store by key '{2}', but "
    "store->get('{2}') got error: wait timeout after {1}ms, keys: /{3}//cuda//{2}"
)
BARS = {
    "bracket": "[rank0] {0}:  {1}%|#####2    | 1098240/2112000 [{2}<27:37, 611.7row/s]",
    "prefix": "[rank0]: {0}: {1}%|█████     | 52.1k/99.9k [{2}<1:02:37, 3.17it/s]",
    "words": "rank 0: {0}  {1}%|#####     | 12/24 [{2}<27:37, 140.20s/file]",
}


def give_up(ms: int = 1800000, key: str = "0", group: str = "default_pg/0") -> list[str]:
    return [GAVE_UP.format(rank, ms, key, group) for rank in (3, 2, 1)]


def judge(folder: Path, *lines: str) -> tuple[str, list[int]]:
    """Return the first code of a report, and whom it names."""
    found = say(folder, *lines).findings
    return (found[0].code, found[0].culprits.ranks) if found else ("", [])


@pytest.mark.parametrize("form", BARS)
@pytest.mark.parametrize("name", ["stats", "hashing captions", "warm cache"])
def test_rank_that_prepares_while_others_give_up_is_at_its_setup(
    tmp_path: Path, form: str, name: str
) -> None:
    before, after = BARS[form].format(name, 52, "29:55"), BARS[form].format(name, 53, "30:16")

    assert judge(tmp_path, before, *give_up()) == ("H117", [0])
    assert judge(tmp_path, before, *give_up(), after) == ("H117", [0])
    assert judge(tmp_path, *give_up(600000), BARS[form].format(name, 9, "01:16")) == ("H117", [0])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([BARS["bracket"].format("stats", 100, "29:55"), *give_up()], id="done"),
        pytest.param([BARS["bracket"].format("stats", 52, "02:10"), *give_up()], id="short, above"),
        pytest.param(
            [BARS["bracket"].format("stats", 52, "29:55"), "[rank0] begin", *give_up()],
            id="went on",
        ),
        pytest.param([BARS["bracket"].format("train epoch", 52, "29:55"), *give_up()], id="trains"),
        pytest.param(
            [BARS["bracket"].format("val", 52, "29:55").replace("val", "eval"), *give_up()],
            id="evaluates",
        ),
        pytest.param(
            [BARS["bracket"].format("stats", 52, "29:55"), *give_up(key="7", group="sub_pg/7")],
            id="of another group",
        ),
        pytest.param(
            [BARS["bracket"].replace("rank0", "rank2").format("stats", 52, "29:55"), *give_up()],
            id="of a rank that waits",
        ),
        pytest.param(
            [
                BARS["bracket"].format("stats", 52, "29:55"),
                "[rank0]: Traceback (most recent call last):",
                '[rank0]:   File "/w/a.py", line 3, in f',
                "[rank0]: KeyError: 1",
                *give_up(),
            ],
            id="failed",
        ),
        pytest.param(
            [BARS["bracket"].format("stats", 52, "29:55").removeprefix("[rank0] "), *give_up()],
            id="of nobody",
        ),
    ],
)
def test_what_is_no_setup_of_the_rank_that_others_wait_for(
    tmp_path: Path, lines: list[str]
) -> None:
    assert judge(tmp_path, *lines)[0] != "H117"


def test_bars_of_a_job_that_is_well_tell_nothing(tmp_path: Path) -> None:
    lines = [BARS["bracket"].format("stats", pct, f"{pct // 4}:10") for pct in range(4, 101, 4)]

    assert blamed_of(say(tmp_path, *lines)) == (set(), set())
