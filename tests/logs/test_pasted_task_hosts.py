"""Numbers before lines that count launchers, such as torchrun below ``srun -l``, and no ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

RUN = "W1105 10:00:01.000000 4{0}01 torch/distributed/run.py:792] ******"
COMMAND = "+ torchrun --nnodes 2 --nproc-per-node {each} train.py"
FAILED = [
    "Traceback (most recent call last):",
    '  File "/home/u/train.py", line 88, in <module>',
    "    main()",
    "KeyError: 'labels'",
]
END = (
    "E1105 10:05:02.000000 5001 torch/distributed/elastic/multiprocessing/api.py:869] failed "
    "(exitcode: 1) local_rank: 3 (pid: 5014) of binary: /usr/bin/python3"
)
OLD_END = (
    "[2024-02-05 10:05:02,113] torch.distributed.elastic.multiprocessing.api: [ERROR] failed "
    "(exitcode: 1) local_rank: 3 (pid: 5014) of binary: /usr/bin/python3"
)
STEP = "step 100 loss 2.31"


def number(form: str, *lines: tuple[int, str]) -> list[str]:
    return [form.format(task) + text for task, text in lines]


def fail(task: int = 1) -> list[tuple[int, str]]:
    return [(task, text) for text in FAILED]


FORMS = ["{0}: ", "[{0}] "]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([(0, RUN.format(0)), (1, RUN.format(1)), (0, STEP), *fail()], id="agents"),
        pytest.param([(0, STEP), *fail(), (1, END)], id="local rank"),
        pytest.param([(0, STEP), *fail(), (1, OLD_END)], id="local rank of old torch"),
        pytest.param([(0, f"[rank0]: {STEP}"), *fail(), (1, END)], id="first rank"),
        pytest.param([(0, COMMAND.format(each=8)), (0, STEP), *fail()], id="command"),
    ],
)
def test_hosts_by_number_are_no_ranks(
    tmp_path: Path, form: str, lines: list[tuple[int, str]]
) -> None:
    finding = first_of(say(tmp_path, *number(form, *lines)))

    assert (finding.code, finding.culprits.ranks) == ("C204", [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([(0, STEP), *fail(), (0, STEP)], id="nothing tells"),
        pytest.param([(0, COMMAND.format(each=1)), (0, STEP), *fail()], id="one rank of each"),
        pytest.param([(0, STEP), (1, f"[rank1]: {STEP}"), *fail(), (1, END)], id="rank inside"),
    ],
)
def test_ranks_by_number(tmp_path: Path, form: str, lines: list[tuple[int, str]]) -> None:
    finding = first_of(say(tmp_path, *number(form, *lines)))

    assert (finding.code, finding.culprits.ranks) == ("C204", [1])
