"""What torchfrtrace misses, beside source and the stack of that rank; stacks of a line each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

TOLD = """\
$ torchfrtrace --prefix nccl_trace_rank_ /scratch/fr
loaded 4 files in 0.18s
built groups, memberships
Not all ranks joining collective, sequence number: 772
internal record id: 771
group info: 0:default_pg
collective: nccl:all_gather
missing ranks: {2}
input sizes: [[128]]
output sizes: [[512]]
world size: 4
expected ranks: {0, 1, 2, 3}
collective state: scheduled
"""
STACK = """\
collective stack trace:
 all_gather_into_tensor at /opt/venv/lib/torch/distributed/distributed_c10d.py:3811
share at ROOT/seg/pool.py:44
run_fold at ROOT/seg/fold.py:83
main at ROOT/train_seg.py:41
"""
SKIP = """\
seg/fold.py:
  78      for case in cases:
  79          mask = net(case)
  80          found = mask.nonzero()
  81          if len(found) == 0:
  82              continue
  83          pool.share(found)
  84      dist.barrier(group=gloo)
"""
CALL = (
    "all_gather (torch/distributed/distributed_c10d.py:3811) <- share (seg/pool.py:44) "
    "<- run_fold (seg/fold.py:83) <- main (train_seg.py:41)"
)
LINES = {
    "arrow": "rank 2: barrier (torch/distributed/distributed_c10d.py:4811) <- run_fold "
    "(seg/fold.py:84) <- main (train_seg.py:41)",
    "dots": "py-spy of rank 2: barrier (torch/distributed/distributed_c10d.py:4811) <- run_fold "
    "(seg/fold.py:84)... the other ranks: run_fold (seg/fold.py:83)",
    "sentence": "py-spy rank 2: barrier (torch/distributed/distributed_c10d.py:4811) <- run_fold "
    "(seg/fold.py:84), all the others: run_fold (seg/fold.py:83)",
}


def paste(folder: Path, stack: str, source: str, *, root: str = "", more: str = "") -> Report:
    call = STACK.replace("ROOT/", root)
    prints = [f"[rank{rank}]: fold 3 case 192/192" for rank in range(4)]
    return say(folder, TOLD + call, source, *prints, more, stack)


@pytest.mark.parametrize("root", ["", "/home/ana/"])
@pytest.mark.parametrize("stack", LINES)
def test_rank_that_waits_past_the_call_left_it_out(tmp_path: Path, stack: str, root: str) -> None:
    finding = first_of(paste(tmp_path, LINES[stack], SKIP, root=root))

    assert (finding.name, finding.culprits.ranks) == ("skipped-collective", [2])
    assert finding.confidence == "likely"
    assert [(one.file, one.line) for one in finding.where][:1] == [("seg/fold.py", 83)]


@pytest.mark.parametrize(
    ("stack", "source"),
    {
        "no source": (LINES["arrow"], ""),
        "no condition": (LINES["arrow"], SKIP.replace("continue", "count += 1")),
        "at work": (
            "rank 2: draw (seg/tools.py:9) <- run_fold (seg/fold.py:84) <- main (train_seg.py:41)",
            SKIP,
        ),
        "before it": (
            LINES["arrow"].replace("fold.py:84", "fold.py:79"),
            SKIP,
        ),
    }.values(),
)
def test_rank_that_may_come_yet_left_out_nothing(tmp_path: Path, stack: str, source: str) -> None:
    finding = first_of(paste(tmp_path, stack, source))

    assert finding.name != "skipped-collective"
    assert finding.culprits.ranks in ([], [2])


def test_rank_that_had_fewer_batches_left_the_loop(tmp_path: Path) -> None:
    counts = "\n".join(f"[rank{rank}]: {190 if rank == 2 else 192} batches" for rank in range(4))
    finding = first_of(paste(tmp_path, LINES["arrow"], SKIP, more=counts))

    assert (finding.name, finding.culprits.ranks) == ("left-early", [2])


@pytest.mark.parametrize(
    "who", ["; the others", "... all other ranks", ", ranks 0,1,3", ". The rest", " and the others"]
)
def test_one_line_tells_the_stacks_of_one_rank_and_of_all_others(tmp_path: Path, who: str) -> None:
    prints = [f"[rank{rank}]: fold 3 case 192/192" for rank in range(4)]
    finding = first_of(say(tmp_path, *prints, SKIP, f"{LINES['arrow']}{who}: {CALL}"))

    # Whether the loop was shorter, or the call left out in it, nothing tells.
    assert finding.name in {"skipped-collective", "left-early"}
    assert finding.culprits.ranks == [2]
    assert finding.victims.ranks == "0-1,3"
