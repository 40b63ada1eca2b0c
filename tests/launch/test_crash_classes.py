"""Every class of crash that one machine can make, as a real job: its name, rank and line.

The jobs are those of `bench/faults`, of which `make bench-faults` runs all seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.faults.cases import find_lack, find_truth, load_cases
from bench.faults.execute import Tools, find_tool, run_case
from bench.faults.judge import judge

SEED = 1
QUICK = ("c204-loader-worker",)
CASES = [case for case in load_cases() if case.name.startswith(("c2", "h121"))]


@pytest.mark.parametrize(
    "name",
    [
        case.name if case.name in QUICK else pytest.param(case.name, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_crash_is_named_right(name: str, tmp_path: Path) -> None:
    (case,) = load_cases([name])
    if (lack := find_lack(case)) is not None:
        pytest.skip(lack)
    tools = Tools(find_tool("whystuck"), find_tool("torchrun"), "auto")
    run = run_case(case, SEED, tools, tmp_path)
    outcome = judge(case, SEED, find_truth(case, SEED), run, tmp_path)
    said = f"{outcome} {(tmp_path / 'output.log').read_text(errors='replace')[-4000:]}"
    assert outcome.name_ok, said
    assert outcome.rank_ok is not False, said
    assert outcome.line_ok is not False, said
    assert outcome.exit_ok, said
    assert outcome.again_ok is not False, said
    assert outcome.decoy is None, said
    assert not outcome.wrong_rank, said
    assert not outcome.leftovers, said
