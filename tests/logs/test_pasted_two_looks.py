"""Pasted rows of `ls -l` of one file, looked at twice while ranks wait for whoever writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say
from tests.logs.test_who import WAIT

FILE = "mp_rank_00_model_states.pt"
FOLDER = "/s/out/global_step70"
SAVING = f"[2026-11-12 08:30:09,770] [INFO] [engine.py:21:save] [Torch] Saving {FOLDER}/{FILE}..."
ANNOUNCED = (
    "[2026-11-12 08:30:06,118] [INFO] [logging.py:128:log_dist] [Rank 0] [Torch] Checkpoint "
    "global_step70 is about to be saved!"
)
WAITED = [SAVING, WAIT.format(3)]
SIZES = (21_000_000_000, 24_000_000_000)


def list_rows(*sizes: int, file: str = FILE) -> list[str]:
    return [f"-rw-r--r-- 1 me lab {size} Nov 12 08:3{k} {file}" for k, size in enumerate(sizes)]


def list_short(*sizes: int) -> list[str]:
    return [f"-rw-r--r-- 1 me lab {size} 08:3{k}:40 {FILE}" for k, size in enumerate(sizes)]


def list_led(first: str, second: str = "", end: str = "08:32:02") -> list[str]:
    times = ("08:31:02", end)
    rows = [
        f"{time}  -rw-r--r-- 1 me lab {size} {FILE}"
        for time, size in zip(times, SIZES, strict=True)
    ]
    return [first, rows[0], second or first, rows[1]]


def list_dated(command: str) -> list[str]:
    clocks = ("Thu Nov 12 08:31:02 UTC 2026", "Thu Nov 12 08:32:02 UTC 2026")
    rows = list_rows(*SIZES)
    return [text for k in (0, 1) for text in (command, clocks[k], rows[k])]


LOOKS = {
    "two times": [f"$ ls -l {FOLDER}/   # 08:30, then 08:31", *list_rows(*SIZES)],
    "and": [f"$ ls -l {FOLDER}   # at 08:30:05 and 08:31:05", *list_rows(*SIZES)],
    "apart": ["$ ls -l --time-style=+%T global_step70/   # a minute apart", *list_short(*SIZES)],
    "later": [f"me@n1:~$ ls -la {FOLDER}/ # and 60 s later", *list_rows(*SIZES)],
    "led": list_led("$ date; ls -l global_step70/"),
    "led at once": list_led("$ date +%T; ls -l global_step70/"),
    "dated": list_dated(f"n1$ date; ls -l {FOLDER}/"),
}


@pytest.mark.parametrize("form", LOOKS)
def test_two_looks_at_a_file_that_grew_tell_of_a_slow_save(tmp_path: Path, form: str) -> None:
    found = say(tmp_path, *WAITED, *LOOKS[form]).findings[0]

    assert (found.code, found.culprits.ranks) == ("H118", [])
    assert "grew by 50.0 MB/s" in found.summary


@pytest.mark.parametrize("form", LOOKS)
def test_first_rank_that_announces_its_save_writes_the_model(tmp_path: Path, form: str) -> None:
    found = say(tmp_path, ANNOUNCED, *WAITED, *LOOKS[form]).findings[0]

    assert (found.code, found.culprits.ranks) == ("H118", [0])


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([f"$ ls -l {FOLDER}/", *list_rows(*SIZES)], id="no word of two looks"),
        pytest.param([f"$ ls -lR {FOLDER}/   # 08:30, then 08:31", *list_rows(*SIZES)], id="below"),
        pytest.param(
            [f"$ ls -l {FOLDER}/ /s/old/   # a minute apart", *list_rows(*SIZES)], id="two folders"
        ),
        pytest.param(
            ["$ ls -l /s/out/*/   # a minute apart", *list_rows(*SIZES)], id="many folders"
        ),
        pytest.param(
            [f"$ ls -l {FOLDER}/   # a minute apart", *list_rows(SIZES[0], SIZES[0])], id="still"
        ),
        pytest.param(
            [f"$ ls -l {FOLDER}/   # a minute apart", *list_rows(*SIZES[::-1])], id="smaller"
        ),
        pytest.param(
            [
                f"$ ls -l {FOLDER}/   # a minute apart",
                *list_rows(SIZES[0]),
                *list_rows(SIZES[1], file="zero_pp_rank_0_mp_rank_00_optim_states.pt"),
            ],
            id="two files",
        ),
        pytest.param([f"$ ls -l {FOLDER}/   # from 08:30 on", *list_rows(*SIZES)], id="one time"),
        pytest.param(
            [f"$ ls -l {FOLDER}/   # the one of 08:31 is later", *list_rows(*SIZES)], id="words"
        ),
        pytest.param(
            list_led("n1$ date; ls -l /local/ckpt/", "n2$ date; ls -l /local/ckpt/"), id="two hosts"
        ),
        pytest.param(
            list_led("$ date; ls -l global_step60/", "$ date; ls -l global_step70/"), id="two steps"
        ),
        pytest.param(
            list_led("$ date; ls -l global_step70/", end="08:31:02"),
            id="at one time",
        ),
    ],
)
def test_two_rows_that_may_be_of_two_files_tell_of_no_growth(
    tmp_path: Path, looks: list[str]
) -> None:
    report = say(tmp_path, ANNOUNCED, *WAITED, *looks)

    assert not any("grew" in one.summary for one in report.findings)
    assert not any(one.culprits.ranks for one in report.findings)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([ANNOUNCED.replace("step70", "step60"), *WAITED], id="another step"),
        pytest.param([ANNOUNCED, SAVING, WAIT.format(0)], id="it waits itself"),
        pytest.param([ANNOUNCED, WAIT.format(3)], id="no word of the file"),
    ],
)
def test_announcement_of_something_else_names_nobody(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines, *LOOKS["two times"])

    assert not any(one.culprits.ranks for one in report.findings)


def test_shards_are_not_written_by_who_announces_the_save(tmp_path: Path) -> None:
    shard = "zero_pp_rank_5_mp_rank_00_optim_states.pt"
    lines = [text.replace(FILE, shard) for text in (*WAITED, *LOOKS["two times"])]

    assert not any(one.culprits.ranks for one in say(tmp_path, ANNOUNCED, *lines).findings)
