"""The rank that has a value that is no number a step before all others have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

PREFIXES = {
    "hour and number": "[10:11:{s:02}] [{rank}] ",
    "hour and rank": "10:11:{s:02}.113 [rank{rank}] ",
    "fraction": "[10:11:{s:02}.113] [r{rank}] ",
    "rank alone": "[rank{rank}]: ",
    "hour before a word": "10:11:{s:02} rank{rank}: ",
}
LOSSES = [
    "step {step} local_loss {loss}",
    "iter {step} local loss: {loss}",
    "step={step} unreduced loss = {loss}",
    "step {step} | loss before all-reduce, local_loss={loss}",
]


def lines(prefix: str, loss: str, odd: int = 6, first: int = 3051) -> list[str]:
    told = []
    for step in (3050, 3051, 3052):
        for rank in (0, 6, 1, 2, 3, 5, 4, 7):
            is_nan = step >= (first if rank == odd else 3052)
            value = "nan" if is_nan else f"2.4{rank}12"
            told.append(
                prefix.format(rank=rank, s=step - 3000) + loss.format(step=step, loss=value)
            )
    return told


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("loss", LOSSES[:3])
def test_rank_whose_own_loss_is_nan_first_is_named(tmp_path: Path, prefix: str, loss: str) -> None:
    told = lines(PREFIXES[prefix], loss)
    finding = first_of(say(tmp_path, "NaN on all 8, is it the LR?", "", *told))

    assert (finding.code, finding.culprits.ranks) == ("V502", [6])


@pytest.mark.parametrize(
    "hook",
    [
        "HOOK step {} blocks.17.attn.softmax output has 512 nan (shape [4, 16, 2048])",
        "forward hook: step {} NaN in output of layers.3.mlp",
        "[step {}] non-finite values in activations of decoder.2",
        "iteration {}: output contains NaN, module embed",
    ],
)
@pytest.mark.parametrize("prefix", [*PREFIXES][:4])
def test_rank_whose_hook_tells_first_is_named(tmp_path: Path, prefix: str, hook: str) -> None:
    order = [(3, 3051), (0, 3052), (1, 3052), (2, 3052)]
    told = [PREFIXES[prefix].format(rank=rank, s=51) + hook.format(step) for rank, step in order]
    finding = first_of(say(tmp_path, *told, "who made it?"))

    assert (finding.code, finding.culprits.ranks) == ("V502", [3])


@pytest.mark.parametrize(
    "told",
    [
        # all at one step
        lines(PREFIXES["hour and number"], LOSSES[0], first=3052),
        # what all have added up, which some print at other steps
        lines(PREFIXES["rank alone"], "step {step} loss {loss}"),
        lines(PREFIXES["rank alone"], "step {step} grad_norm {loss}"),
    ],
    ids=["one step", "losses of all", "norms of all"],
)
def test_value_that_all_have_names_nobody(tmp_path: Path, told: list[str]) -> None:
    finding = first_of(say(tmp_path, *told))

    assert (finding.code, finding.culprits.ranks) == ("V502", [])


@pytest.mark.parametrize(
    "line",
    ["output has 0 nan (shape [4, 4])", "no nan in the outputs", "there are no NaN in output"],
)
def test_outputs_without_such_values_are_none(tmp_path: Path, line: str) -> None:
    told = [f"[rank{rank}]: step 9 {line}" for rank in range(4)]

    assert all(one.code != "V502" for one in say(tmp_path, *told).findings)
