"""Files of a checkpoint that are written part by part, while other ranks wait for the writer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say
from tests.logs.test_who import WAIT

BARRIER = [
    'Thread 5120 (active): "MainThread"',
    "    barrier (torch/distributed/distributed_c10d.py:4159)",
    "    save_all (io/save.py:91)",
    "    main (main.py:17)",
]
FORMS = [
    "rank0 upload model.00.pth: part {0}/{1}  21.4 MB/s",
    "[rank0]: uploading optim.pt, chunk {0} of {1}",
    "2026-11-02 03:1{2}:10 rank 0 writing shard.safetensors block {0}/{1}",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rest", [BARRIER, [WAIT.format(1), WAIT.format(3)]])
def test_a_save_that_goes_on_is_slow(tmp_path: Path, form: str, rest: list[str]) -> None:
    lines = [form.format(part, 900, part // 40) for part in (120, 160, 204)]
    found = say(tmp_path, *lines, *rest).findings[0]

    assert (found.code, found.culprits.ranks) == ("H118", [0])


@pytest.mark.parametrize(
    "parts", [(120, 120, 120), (120, 160), (700, 860, 900), (160, 120, 204), (160, 120)]
)
def test_a_save_that_does_not_move_is_not_called_slow(
    tmp_path: Path, parts: tuple[int, ...]
) -> None:
    lines = [FORMS[0].format(part, 900) for part in parts]

    assert "H118" not in {one.code for one in say(tmp_path, *lines, *BARRIER).findings}


def test_parts_of_a_download_are_no_save(tmp_path: Path) -> None:
    lines = [f"rank0 reading model.00.pth: part {part}/900" for part in (120, 160, 204)]

    assert "H118" not in {one.code for one in say(tmp_path, *lines, *BARRIER).findings}
