"""Writes that fail without a reason, beside what `df` shows of the place, and whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

BEGUN = "[2025-06-03 09:10:11,220] [INFO] [engine.py:40:save] [Rank {0}] [Torch] Saving {1}..."
FILE = "/vol2/runs/a/global_step700/mp_rank_00_model_states.pt"
TRACE = [
    "Traceback (most recent call last):",
    '  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 944, in _save',
    "    zip_file.write_record(name, storage, num_bytes)",
]
ERRORS = {
    "zip": (
        "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed "
        "writing file data/31: file write failed"
    ),
    "position": (
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 704 vs 598"
    ),
    "numpy": "OSError: 268435456 requested and 1048576 written",
}
HEAD = "Filesystem      Size  Used Avail Use% Mounted on"
FULL = "fs1:/export     8.0T  8.0T     0 100% /vol2"
DF = {
    "one": [HEAD, FULL],
    "row": [FULL],
    "blocks": [
        "Filesystem     1K-blocks      Used Available Use% Mounted on",
        "overlay         98559220  40559220  58000000  42% /",
        "fs1:/export   8589934592 8589920000     14592 100% /vol2",
    ],
    "wrapped": [
        "Filesystem            Size  Used Avail Use% Mounted on",
        "filer-with-a-long-name.example:/export/vol2",
        "                      8.0T  8.0T   36M 100% /vol2",
    ],
    "inodes": [
        "Filesystem        Inodes    IUsed IFree IUse% Mounted on",
        "/dev/nvme1n1    61054976 61054976     0  100% /vol2",
    ],
    "root": ["Filesystem Size Used Avail Use% Mounted on", "overlay 99G 99G 0 100% /"],
}


def fail(error: str = ERRORS["zip"], prefix: str = "") -> list[str]:
    return [prefix + line for line in (*TRACE, error)]


@pytest.mark.parametrize("shown", DF)
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
def test_write_that_failed_on_a_full_disk_says_so(tmp_path: Path, shown: str, error: str) -> None:
    lines = [BEGUN.format(0, FILE), *fail(error), "root@l1:/# df -h /vol2", *DF[shown]]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("C204", [0])
    assert f"no room is left on {'/' if shown == 'root' else '/vol2'}" in finding.summary
    assert any("df -h" in one for one in finding.remedies)


def test_rank_of_the_traceback_goes_over_who_writes(tmp_path: Path) -> None:
    lines = [BEGUN.format(0, FILE), *fail(prefix="[rank3]: "), *DF["one"]]

    assert first_of(say(tmp_path, *lines)).culprits.ranks == [3]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([], id="nobody"),
        pytest.param([BEGUN.format(one, FILE) for one in (0, 1)], id="two"),
        pytest.param(
            [BEGUN.format(0, FILE), BEGUN.format(1, FILE).replace("[Rank 1] ", "")], id="other"
        ),
        pytest.param(
            [BEGUN.format(0, FILE), "[rank0]: saved checkpoint to /vol2/runs/a"], id="done"
        ),
        pytest.param([BEGUN.format(0, FILE), *["INFO tick"] * 60], id="far"),
    ],
)
def test_write_of_an_unknown_rank_names_nobody(tmp_path: Path, before: list[str]) -> None:
    assert first_of(say(tmp_path, *before, *fail())).culprits.ranks == []


def test_error_that_is_no_write_is_of_no_writer(tmp_path: Path) -> None:
    lines = [BEGUN.format(0, FILE), *fail("KeyError: 'step'"), *DF["one"]]
    finding = first_of(say(tmp_path, *lines))

    assert finding.culprits.ranks == []
    assert "no room" not in finding.summary


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param([HEAD, "/dev/loop3       64M   64M     0 100% /snap/core20"], id="elsewhere"),
        pytest.param(
            [HEAD, "overlay 99G 99G 0 100% /", FULL.replace("0 100%", "2.1T 74%")], id="/"
        ),
        pytest.param([HEAD, FULL.replace("   0 100%", "41G 100%")], id="rounded"),
        pytest.param([HEAD, FULL.replace("/vol2", "/vol")], id="name"),
        pytest.param(["copied 8.0T 8.0T 0 s 100% /vol2"], id="copy"),
    ],
)
def test_other_file_systems_are_no_reason(tmp_path: Path, shown: list[str]) -> None:
    finding = first_of(say(tmp_path, BEGUN.format(0, FILE), *fail(), *shown))

    assert (finding.code, "no room" in finding.summary) == ("C204", False)


def test_full_disk_of_a_job_that_is_well_is_nothing(tmp_path: Path) -> None:
    lines = ["step 10 loss 2.1", "step 11 loss 2.0", *DF["one"], BEGUN.format(0, FILE)]

    assert not [one for one in say(tmp_path, *lines).findings if one.code == "C204"]
