"""Horovod's warnings about missing ranks, beside what these ranks print themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

HEAD = (
    "[1,0]<stderr>:[2022-01-01 10:00:00.1: W horovod/common/stall_inspector.cc:105] One or more "
    "tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are "
    "waiting for remainder of ranks for more than 60 seconds."
)
STALL = [HEAD, "[1,0]<stderr>:Missing ranks:", "[1,0]<stderr>:3: [allreduce.val_metric]"]
OLD = [HEAD.partition(" One")[0], "[1,0]<stderr>:val_metric [missing ranks: 3]"]
ON = "[1,3]<stdout>:Epoch 8/40 loss: 2.1"


@pytest.mark.parametrize("stall", [STALL, OLD], ids=["list", "line"])
@pytest.mark.parametrize(
    "said",
    [
        "only one class in the shard, skip auc",
        "validate: skipping AUROC, all labels are 0",
        "WARNING no positives, skipped the all_gather",
        "empty shard, nothing to reduce",
    ],
)
def test_rank_that_left_the_op_out_and_goes_on_is_named(
    tmp_path: Path, said: str, stall: list[str]
) -> None:
    for number, lines in enumerate(([*stall, f"[1,3]<stdout>:{said}", ON], [ON, *stall])):
        folder = tmp_path / str(number)
        folder.mkdir()
        own = [f"[1,3]<stdout>:{said}"] if number else []
        finding = first_of(say(folder, *own, *lines))

        assert (finding.code, finding.culprits.ranks) == ("H127", [3])


@pytest.mark.parametrize(
    "said",
    ["[1,3]<stdout>:skip step 12, inf in the gradients", "[1,2]<stdout>:one class, skip auc"],
)
def test_missing_rank_that_goes_on_and_left_nothing_out_is_well(tmp_path: Path, said: str) -> None:
    assert not say(tmp_path, *STALL, said, ON).findings


def test_ranks_that_waited_and_go_on_got_over_it(tmp_path: Path) -> None:
    later = [f"[1,0]<stdout>:Epoch 8/40 step {step} loss: 2.1" for step in range(9)]

    assert not say(tmp_path, *STALL, "[1,3]<stdout>:one class, skip auc", ON, *later).findings
