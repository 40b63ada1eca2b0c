"""Stacks of ranks in calls on two groups, to which a loop over a set in the source leads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

STACK = [
    "rank {0}:",
    'Thread 40{0} (idle): "MainThread"',
    "    all_gather_into_tensor (torch/distributed/distributed_c10d.py:3900)",
    "    wrapper (torch/distributed/c10d_logger.py:83)",
    "    share_{1} (stats.py:{2})",
    "    end_epoch (stats.py:31)",
    "    main (job.py:18)",
]
STACKS = [
    *[row.format(0, "heads", 52) for row in STACK],
    *[row.format(1, "tails", 44) for row in STACK],
]
LOOP = "for share in {share_heads, share_tails}:"
CALL = "dist.all_gather_into_tensor(out, self.{0}, group=self.{0}_pg)"
MADE = {
    "made": "self.{0}_pg = dist.new_group([0, 1])",
    "by name": "{0}_pg = torch.distributed.new_group(ranks=[0, 1], backend='gloo')",
    "ranks": "{0}_pg ranks=[0, 1]",
}


def show(loop: str = LOOP, made: str = MADE["made"], *, note: str = "") -> list[str]:
    source = [
        "$ sed -n '30,31p;44p;52p' stats.py",
        f"stats.py:30:        {loop}",
        "stats.py:31:            share(self)",
        f"stats.py:44:        {CALL.format('tails')}{note}",
        f"stats.py:52:        {CALL.format('heads')}{note}",
    ]
    return [*STACKS, *source, *[made.format(one) for one in ("heads", "tails") if made]]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize(
    "loop",
    [LOOP, "for share in set(self.shares):", "for name, share in { ('h', a), ('t', b) }:"],
)
def test_loop_over_a_set_leads_ranks_to_groups_in_any_order(
    tmp_path: Path, loop: str, made: str
) -> None:
    finding = first_of(say(tmp_path, *show(loop, MADE[made])))

    assert (finding.code, finding.culprits.ranks) == ("H104", [0, 1])
    assert finding.details["groups"] == ["heads", "tails"]


def test_comment_behind_a_call_tells_its_group(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *show(made="", note="  # new_group([0, 1])")))

    assert (finding.code, finding.culprits.ranks) == ("H104", [0, 1])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(show("for share in [share_heads, share_tails]:"), id="list"),
        pytest.param(show("for share in {'h': share_heads, 't': share_tails}:"), id="dict"),
        pytest.param(show("for share in sorted({share_heads, share_tails}, key=f):"), id="sorted"),
        pytest.param(show(made="self.{0}_pg = dist.new_group([1, 2])"), id="other members"),
        pytest.param(show(made=""), id="nobody tells the members"),
    ],
)
def test_loops_with_an_order_or_other_groups_name_nobody(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines)

    assert not any(one.culprits.ranks for one in report.findings)
