"""Of lines that are alike, the first ones are kept and the last one; of progress, the last ones."""

from __future__ import annotations

import pytest
from tests.parse.logs.jobs import read_files

BAR = "Tokenizing train dataset: {share:3d}%|###       | {share}000/100000 [29:41<48:22, 27 ex/s]\n"
LOST = "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def list_shares(text: str, block: int = 1 << 20) -> list[str]:
    events = read_files({"a.log": text}, block).logs.events
    return [event.groups["pct"] for event in events if event.signature == "progress.setup"]


def test_first_lines_and_the_last_one_of_a_bar_of_progress_are_kept() -> None:
    text = "".join(BAR.format(share=share) + LOST for share in range(1, 88))

    assert list_shares(text) == [*map(str, range(1, 16)), "87"]


@pytest.mark.parametrize("block", [len(BAR), 1000, 1 << 20])
def test_last_lines_of_progress_are_kept_over_blocks(block: int) -> None:
    text = "".join(BAR.format(share=share) for share in range(1, 88))

    assert list_shares(text, block) == [*map(str, range(82, 88))]


def test_of_very_many_lines_of_progress_the_last_ones_are_looked_at() -> None:
    bars = [BAR.format(share=share) for share in range(1, 88)]

    shares = list_shares("".join([*bars[:40], LOST, *bars[40:]]))

    assert shares[-1] == "87"
    assert "40" in shares
    assert len(shares) < 16
