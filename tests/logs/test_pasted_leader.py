"""A first rank that prepares data alone while the others wait at the head of its block."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Finding

BAR = "{what}:  {done}%|####      | {done}1100/1000000 [{at}<12:40, 910.16 {unit}/s]"
LIMIT = (
    "[rank{0}]:[E{1} ProcessGroupNCCL.cpp:{2}] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1, OpType={3}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600{0}41 milliseconds before timing out."
)
# The same as two versions of torch print it.
VERSIONS = {
    "2.1": (" ", "474", "ALLREDUCE"),
    "2.6": ("0212 16:31:20.662000140 ", "629", "BARRIER"),
}
# How people show the block: a traceback that was cut off, source, a sentence, a stack.
BLOCKS = {
    "cut": [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/srv/clm.py", line 311, in prepare',
        "[rank2]:     with args.main_process_first(local=False):",
        '[rank2]:   File "/usr/lib/python3.11/contextlib.py", line 137, in __enter__',
    ],
    "source": ["    with accelerator.main_process_first():", "        ds = ds.map(tokenize)"],
    "said": ["we do `with torch_distributed_zero_first(rank):` around the cache of labels"],
    "frame": ["    main_process_first (transformers/training_args.py:2241)"],
}


def write(
    version: str, ranks: tuple[int, ...], *, glued: bool = True, unit: str = "examples"
) -> list[str]:
    """Write bars, the last of which another rank goes on with its own line, and the limits."""
    stamp, line, op = VERSIONS[version]
    limits = [LIMIT.format(rank, stamp, line, op) for rank in ranks]
    bars = [
        BAR.format(what="Map", done=done, at=at, unit=unit)
        for done, at in ((12, "02:49"), (27, "06:01"), (44, "09:59"))
    ]
    if glued:
        return [*bars[:-1], bars[-1] + limits[0], *limits[1:]]
    return [*bars, *limits]


def find(folder: Path, *lines: str) -> Finding | None:
    report = say(folder, *lines)
    return next((one for one in report.findings if one.code == "H117"), None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("glued", [True, False])
def test_first_rank_is_named_that_prepares_alone(
    tmp_path: Path, version: str, block: str, *, glued: bool
) -> None:
    found = find(tmp_path, *write(version, (2, 1, 3), glued=glued), *BLOCKS[block])

    assert found is not None
    assert (found.culprits.ranks, found.victims.ranks) == ([0], "1-3")


@pytest.mark.parametrize("version", VERSIONS)
def test_nobody_is_named_without_such_a_block(tmp_path: Path, version: str) -> None:
    found = find(tmp_path, *write(version, (2, 1, 3)))

    assert found is not None
    assert (found.culprits.ranks, found.victims.ranks) == ([], "1-3")


@pytest.mark.parametrize("ranks", [(2, 3), (0, 1, 2), (1, 2, 3, 5, 6, 7)])
def test_others_may_be_missing_as_well(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    found = find(tmp_path, *write("2.6", ranks), *BLOCKS["cut"][:1], *BLOCKS["source"])

    assert found is None or not found.culprits.ranks


def test_line_behind_a_bar_is_of_the_rank_that_it_names(tmp_path: Path) -> None:
    bar = "Epoch 3:  41%|####1     | 187/456 [1:02:11<1:28:53,  2.50s/it, loss=0.91]"
    error = ["[rank5]: Traceback (most recent call last):", '[rank5]:   File "/w/a.py", line 3']
    report = say(tmp_path, bar + error[0], f"{error[1]}, in f", "[rank5]: KeyError: 'x'")

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("C204", [5])]
