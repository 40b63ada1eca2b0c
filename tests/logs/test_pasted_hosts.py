"""Which host a paste of several of them tells of: of its card, its memory, its files, its start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

NCCL = "{0}:8871:9551 [5] transport/net_ib.cc:2068 NCCL WARN NET/IB : mlx5_6:1 {1}"
LOST = (
    "{0}:8871:9551 [5] transport/net_ib.cc:2101 NCCL WARN NET/IB: Got completion from peer "
    "10.66.2.{1}<41802> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_6"
)
DOWN = [
    "n4 # dmesg -T | grep mlx5",
    "[Fri Mar  6 03:58:15 2026] mlx5_core 0000:ba:00.0 ens6np0: Link down",
    "[Fri Mar  6 03:59:52 2026] mlx5_core 0000:ba:00.0 ens6np0: Link up",
]


@pytest.mark.parametrize(
    "note", ["GID table change", "client reregistration", "LID change", "port active", "SM change"]
)
def test_card_that_tells_of_a_change_is_well(tmp_path: Path, note: str) -> None:
    lines = [
        NCCL.format("n1", f"Got async event : {note}"),
        NCCL.format("n4", "Got async event : port error"),
        LOST.format("n4", 21),
        LOST.format("n1", 24),
    ]

    for end in ([], DOWN):
        finding = first_of(say(tmp_path, *lines, *end))
        assert (finding.code, finding.culprits.nodes) == ("C208", ["n4"])

    report = say(tmp_path, lines[0], *lines[2:])
    assert not [item for item in report.findings if "n1" in item.culprits.nodes]
