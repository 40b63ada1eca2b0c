"""Of lines that are alike, the first ones are kept and the last one."""

from __future__ import annotations

from tests.parse.logs.jobs import read_files

BAR = "Tokenizing train dataset: {share:3d}%|###       | {share}000/100000 [29:41<48:22, 27 ex/s]\n"


def test_last_line_of_a_bar_of_progress_is_kept() -> None:
    text = "".join(BAR.format(share=share) for share in range(1, 88))

    events = read_files({"a.log": text}).logs.events

    assert [event.groups["pct"] for event in events] == [*map(str, range(1, 16)), "87"]
    assert sum(event.count for event in events) == 87
    assert [event.row for event in events][-1] == 87
