"""``whystuck fr`` on dumps as NCCL and gloo write them, with every option of torchfrtrace."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.offline.test_fr_tables import COLLECTIVE_COLUMNS, OP_COLUMNS
from tests.diagnose.dumps import GLOO, NCCL, SCHEDULED, STARTED, Dumps
from tests.diagnose.logs.test_tutorial_crash import COMMON, crash
from tests.diagnose.scenes import MODULE, at
from tests.diagnose.test_torchfrtrace_cases import hang, loop, tensor_and_data_parallel

from whystuck.cli import main
from whystuck.cli.compat.torchfrtrace import repeat_options

Run = Callable[..., tuple[int, str, str]]
both_forms = pytest.mark.parametrize("form", [NCCL, GLOO])


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("NO_COLOR", "1")

    def run_command(*arguments: str | Path) -> tuple[int, str, str]:
        code = main(["fr", *map(str, arguments)])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A hang of 4 ranks: rank 3 does not come."""
    place = tmp_path / "dumps"
    place.mkdir()
    return hang(loop(Dumps(groups={"1": ("pair", (0, 1))})), [0, 1, 2]).write(place)


# ------------------------------------------------------------------------------------- the report


@both_forms
def test_tutorial_crash_is_told_with_both_call_sites(form: str, run: Run, tmp_path: Path) -> None:
    code, out, err = run(crash(form, "2.10", COMMON).write(tmp_path))

    assert (code, err) == (1, "")
    assert "error[H102]: rank 0 made an extra all_reduce in main (crash.py:39)" in out
    line = next(line for line in out.splitlines() if line.startswith("->"))
    assert "crash.py:39" in line
    assert "crash.py:44" in line
    assert "-> the ranks part here" in out


def test_lines_fit_in_the_width_of_kept_text(run: Run, folder: Path) -> None:
    _, out, _ = run(folder)

    assert max(map(len, out.splitlines())) <= 95


def test_healthy_dumps_are_0(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(loop(Dumps()).write(tmp_path))

    assert code == 0
    assert out.startswith("healthy:")
    assert "group 0 (default_pg), ranks 0-3: 8 of 10 ops" in out


def test_dumps_that_do_not_decide_are_3(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(loop(Dumps()).write(tmp_path, leave_out=[1, 2]))

    assert code == 3
    assert "inconclusive" in out


@pytest.mark.parametrize("paths", [[], ["nowhere"], [""]])
def test_no_folder_is_2(paths: list[str], run: Run) -> None:
    code, out, err = run(*paths)

    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "\nhint: " in err


def test_missing_ranks_are_gaps_with_and_without_the_option(run: Run, tmp_path: Path) -> None:
    hang(loop(Dumps()), [0, 1, 2]).write(tmp_path, leave_out=[3])

    assert run(tmp_path) == run(tmp_path, "--allow-incomplete-ranks")


def test_report_as_json_has_the_timeline(run: Run, folder: Path) -> None:
    code, out, _ = run(folder, "--format", "json", "--last", "3")
    [timeline] = json.loads(out)["timeline"]

    assert code == 1
    assert (timeline["group"], timeline["columns"]) == ("0", ["0-2", "3"])
    assert [op["mark"] for op in timeline["ops"]] == ["", "", "pending"]
    assert [part["state"] for part in timeline["ops"][-1]["classes"]] == ["started", "absent"]
    assert timeline["ops"][-1]["classes"][0]["sites"][0]["line"] == 22


@pytest.mark.parametrize("form", ["md", "html"])
def test_report_in_other_forms_has_the_timeline(form: str, run: Run, folder: Path) -> None:
    _, out, _ = run(folder, "--format", form)

    assert "train.py:22 train" in out.replace("`", "")
    assert "group 0" in out


def test_redacted_report_has_no_folders(run: Run, folder: Path) -> None:
    _, out, _ = run(folder, "--redact", "--format", "json")

    assert "/job/" not in out
    assert "…/train.py" in out


def test_verbose_tells_on_stderr_what_was_read(run: Run, folder: Path) -> None:
    _, _, err = run(folder, "-v")

    assert "dumps: 4 of 4 ranks (0-3)" in err
    assert "format: 2.10" in err


def test_verbose_tells_what_is_missing_in_one_line(run: Run, tmp_path: Path) -> None:
    tensor_and_data_parallel(NCCL).write(tmp_path)
    for rank in (2, 3, 5):
        next(tmp_path.glob(f"*{rank}*")).unlink()
    _, _, err = run(tmp_path, "-v")

    assert [line for line in err.splitlines() if line.startswith("gap")] == [
        "gap: ranks 2-3,5: evidence: no file of this rank was found"
    ]


def test_groups_of_a_report_are_restricted(run: Run, tmp_path: Path) -> None:
    dumps = tensor_and_data_parallel(NCCL)
    hang(hang(dumps, [4], group="tp2"), [0, 2, 6], group="dp0").write(tmp_path)
    _, out, _ = run(tmp_path, "--pg-filters", "data", "--format", "json")

    assert {item["group"] for item in json.loads(out)["timeline"]} == {"dp0"}


# ---------------------------------------------------------------------------------------- the table


def test_table_has_a_row_an_op_and_a_column_a_set_of_ranks(run: Run, folder: Path) -> None:
    code, out, _ = run("-j", folder)
    lines = out.splitlines()

    assert code == 0
    assert lines[0] == "group 0 (default_pg), ranks 0-3: 11 ops"
    assert lines[1].endswith("  rank 3")
    assert "ranks 0-2" in lines[1]
    assert len([line for line in lines if "all_reduce" in line]) == 11
    last = next(line for line in lines if line.startswith(" >"))
    assert last.split() == [
        *(">", "11", "all_reduce", "[4]", "Float"),
        *("started", "train.py:22", "train", "absent"),
    ]


def test_table_of_gloo_needs_no_members(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("-j", hang(loop(Dumps(form=GLOO)), [0, 1, 2]).write(tmp_path))

    assert code == 0
    assert "pending train.py:22 train" in out


def test_selected_ranks_take_several_words_before_the_folder(run: Run, folder: Path) -> None:
    _, out, _ = run("-j", "--selected-ranks", "2", "3", folder)

    assert "rank 2" in out
    assert "rank 3" in out
    assert "ranks 0-2" not in out


def test_group_filters_go_by_name_or_description(run: Run, tmp_path: Path) -> None:
    tensor_and_data_parallel(NCCL).write(tmp_path)
    _, by_name, _ = run("-j", tmp_path, "--pg-filters", "tp0", "dp1")
    _, by_desc, _ = run("-j", tmp_path, "--pg-filters", "data")

    assert [line for line in by_name.splitlines() if line.startswith("group")] == [
        "group dp1 (data), ranks 1,3,5,7: 4 ops",
        "group tp0 (tensor 0), ranks 0-1: 4 ops",
    ]
    assert "group dp0 (data), ranks 0,2,4,6: 4 ops" in by_desc
    assert "1 more group is alike (dp1): ranks 1,3,5,7" in by_desc


@pytest.mark.parametrize("table", [["-j"], []])
def test_group_that_nobody_has_is_an_error_with_a_hint(
    table: list[str], run: Run, folder: Path
) -> None:
    code, out, err = run(*table, folder, "--pg-filters", "nobody")

    assert (code, out) == (2, "")
    assert err == (
        "error: no group has the name or description `nobody`\n"
        "hint: the groups are 0 (default_pg), 1 (pair)\n"
    )


@pytest.mark.parametrize("table", [["-j"], []])
def test_rank_without_a_dump_is_an_error_with_a_hint(
    table: list[str], run: Run, folder: Path
) -> None:
    code, out, err = run(*table, folder, "--selected-ranks", "99")

    assert (code, out) == (2, "")
    assert err == "error: no dump of rank 99 was read\nhint: there are dumps of ranks 0-3\n"


def test_what_is_there_is_shown_and_the_rest_is_noted(run: Run, tmp_path: Path) -> None:
    tensor_and_data_parallel(NCCL).write(tmp_path)
    arguments = ("--pg-filters", "tp0", "paar", "--selected-ranks", "0-1,77")
    code, out, err = run("-j", tmp_path, *arguments)

    assert code == 0
    assert "group tp0 (tensor 0), ranks 0-1" in out
    assert "note: no group has the name or description `paar`\n" in err
    assert "note: no dump of rank 77 was read\n" in err


def test_ranks_that_are_not_in_the_group_leave_nothing(run: Run, tmp_path: Path) -> None:
    tensor_and_data_parallel(NCCL).write(tmp_path)
    code, _, err = run("-j", tmp_path, "--pg-filters", "tp0", "--selected-ranks", "3")

    assert code == 2
    assert err.startswith("error: no op is left after `--pg-filters` and `--selected-ranks`\n")


def test_size_of_a_replica_group_alone_is_noted(run: Run, folder: Path) -> None:
    _, _, err = run("-j", folder, "--group-world-size", "2")

    assert err == "note: `--group-world-size` does nothing without `--transform-ft`\n"


@pytest.mark.parametrize("option", ["--last", "--pg-filters", "--selected-ranks", "--prefix"])
def test_option_without_its_argument_has_a_hint(option: str, run: Run, folder: Path) -> None:
    code, _, err = run(folder, option)

    assert code == 2
    assert err.endswith("hint: `whystuck fr --help` shows how it is used\n")


@pytest.mark.parametrize("command", ["fr", "diagnose"])
@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device"])
def test_what_is_no_file_is_said_at_once(
    command: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="ws") as short, socket.socket(socket.AF_UNIX) as bound:
        path = Path(short, "it")
        if kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a socket":
            bound.bind(str(path))
        else:
            path = Path("/dev/zero")
        code = main([command, str(path)])
        err = capfd.readouterr().err

    assert code == 2
    assert err == (
        f"error: {path} is {kind}, not a file or a folder\n"
        "hint: write what comes out of it to a file, and give that\n"
    )


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_and_is_named_as_that_of_a_rank_is_a_gap(
    kind: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second, *_ = sorted(path for path in folder.iterdir() if path.is_file())
    second.unlink()
    # To open a pipe that nobody writes to takes for ever.
    second.symlink_to("nowhere") if kind == "link" else os.mkfifo(second)
    os.mkfifo(folder / "control")
    main(["diagnose", str(folder), "--format", "json"])
    gaps = json.loads(capfd.readouterr().out)["gaps"]

    reason = "it is a link that leads nowhere" if kind == "link" else "it is no regular file"
    assert f"{second.name}: {reason}" in [gap["reason"] for gap in gaps]
    assert not [gap for gap in gaps if "control" in gap["reason"] or first.name in gap["reason"]]


def test_last_all_shows_every_op(run: Run, tmp_path: Path) -> None:
    loop(Dumps(), 30).write(tmp_path)
    _, some, _ = run("-j", tmp_path)
    _, many, _ = run("-j", tmp_path, "--last", "all")

    assert some.count("all_reduce") == 20
    assert many.count("all_reduce") == 60
    assert run("-j", tmp_path, "--last", "ALL")[1] == many
    for wrong in ("0", "-1", "9" * 5_000):
        assert run("-j", tmp_path, "--last", wrong)[0] == 2


def test_stacks_are_printed_a_frame_a_line(run: Run, folder: Path) -> None:
    _, out, _ = run("-j", folder, "--print_stack_trace", "--last", "1")

    assert "\n        train /job/train.py:22\n        <module> /job/train.py:99\n" in out


def test_transfers_are_rows_with_both_ends(run: Run, tmp_path: Path) -> None:
    dumps = Dumps(groups={"1": ("pipe", (2, 3))})
    for _ in range(3):
        dumps.move(0, 1, (at("/job/p.py", 5), MODULE), group="1")
    dumps.recv(1, 0, (at("/job/p.py", 6), MODULE), group="1", state=STARTED).write(tmp_path)
    _, out, _ = run("-j", tmp_path, "--format", "json")
    [timeline] = json.loads(out)["timeline"]

    assert (timeline["group"], timeline["members"], timeline["recorded"]) == ("1", "2-3", 4)
    assert [op["op"] for op in timeline["ops"]] == ["2->3"] * 4
    assert [(part["ranks"], part["state"]) for part in timeline["ops"][-1]["classes"]] == [
        ("2", "absent"),
        ("3", "started"),
    ]


def test_transfers_of_rings_that_wrapped_are_matched_at_the_end(run: Run, tmp_path: Path) -> None:
    dumps = Dumps(2, ring=7)
    for _ in range(9):
        dumps.move(0, 1).op([0], "barrier", profiling_name="nccl:alone", process_group=("9", "x"))
    dumps.send(0, 1, state=SCHEDULED).write(tmp_path)
    _, out, _ = run("-j", tmp_path, "--format", "json", "--pg-filters", "0")
    last = json.loads(out)["timeline"][-1]["ops"][-1]

    assert [(part["ranks"], part["state"]) for part in last["classes"]] == [
        ("0", "pending"),
        ("1", "absent"),
    ]


def test_mismatch_cap_limits_what_is_listed_not_what_is_judged(run: Run, tmp_path: Path) -> None:
    dumps = loop(Dumps(2), 1)
    dumps.op([0], "all_reduce", times=5).op([1], "broadcast", times=5).write(tmp_path)
    _, out, _ = run("-j", tmp_path, "--mismatch_cap", "2")

    assert "5 of 7 ops do not match: 3, 4, …" in out
    assert out.count("all_reduce") == 7


@pytest.mark.parametrize("form", ["json", "md"])
def test_table_in_other_forms(form: str, run: Run, folder: Path) -> None:
    code, out, _ = run("-j", folder, "--format", form)

    assert code == 0
    if form == "md":
        assert "| > | 11 | all_reduce |" in out.replace("&gt;", ">").replace("\\_", "_")
    else:
        assert json.loads(out)["timeline"][0]["ops"][-1]["sequence"] == 11


# ---------------------------------------------------------------------------- files and their names


def test_prefix_chooses_the_files(run: Run, tmp_path: Path) -> None:
    loop(Dumps(prefix="old_")).write(tmp_path)
    hang(loop(Dumps(prefix="new_")), [0, 1, 2]).write(tmp_path)

    assert run(tmp_path, "-p", "new_")[0] == 1
    assert run(tmp_path, "--prefix", "old_")[0] == 0
    assert run(tmp_path, "--prefix", "none_")[0] == 2


def test_number_after_the_prefix_is_the_rank(run: Run, tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(prefix="")), [0, 1, 2])
    dumps.write(tmp_path)
    for rank in range(4):
        (tmp_path / str(rank)).rename(tmp_path / f"job7_fr_{rank}_host{40 + rank}")
    code, out, _ = run(tmp_path, "-p", "_fr_", "--format", "json")

    assert code == 1
    assert json.loads(out)["findings"][0]["culprits"]["ranks"] == [3]


def test_replica_groups_of_torchft_are_told_apart(run: Run, tmp_path: Path) -> None:
    site = (at("/job/train.py", 3), MODULE)
    for replica in (0, 2):
        dumps = Dumps(2).op([0, 1], "all_reduce", site, times=3 + replica)
        if replica:
            dumps.op([0], "all_reduce", site, state=STARTED)
        place = tmp_path / f"r{replica}"
        place.mkdir()
        dumps.write(place)
        for rank in (0, 1):
            (place / f"nccl_trace_rank_{rank}").rename(tmp_path / f"trace_{rank + replica}")
    code, out, _ = run(tmp_path, "--transform-ft", "--group-world-size", "2", "--format", "json")
    report = json.loads(out)

    assert code == 1
    assert report["findings"][0]["culprits"]["ranks"] == [3]
    assert report["timeline"][0]["members"] == "2-3"
    assert run(tmp_path, "--transform-ft")[0] == 2


# --------------------------------------------------------------------------- the words of argparse


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["d", "--selected-ranks", "0", "1"], ["d", *["--selected-ranks", "0"],
                                              *["--selected-ranks", "1"]]),
        (["--selected-ranks", "0", "d"], ["--selected-ranks", "0", "d"]),
        (["--selected_ranks", "0-3,5", "-j"], ["--selected_ranks", "0-3,5", "-j"]),
        (["--pg-filters", "a", "b", "-j"], ["--pg-filters", "a", "--pg-filters", "b", "-j"]),
        (["d", "--pg-filters"], ["d", "--pg-filters"]),
        (["d", "--pg-filters", "-j"], ["d", "--pg-filters", "-j"]),
    ],
)  # fmt: skip
def test_options_with_several_words(given: list[str], made: list[str]) -> None:
    assert repeat_options(given) == made


def test_last_filter_is_the_folder_when_none_is_given(run: Run, folder: Path) -> None:
    code, out, _ = run("-j", "--pg-filters", "default_pg", folder)

    assert code == 0
    assert out.startswith("group 0 (default_pg)")


@pytest.mark.parametrize(
    "word", ["-1", "x", "3-1", "0-99999999999", "2000000", "0-2000000", "9" * 5_000]
)
def test_rank_that_is_none_is_2(word: str, run: Run, folder: Path) -> None:
    assert run(folder, f"--selected-ranks={word}")[0] == 2


def test_dashes_and_underscores_are_both_taken(run: Run, folder: Path) -> None:
    dashed = ("--just-print-entries", "--print-stack-trace", "--mismatch-cap", "3")
    scored = ("--just_print_entries", "--print_stack_trace", "--mismatch_cap", "3")

    assert run(folder, *dashed) == run(folder, *scored)


# ----------------------------------------------------------------------------------- the documents


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "flight-recorder.md"


def quoted(name: str) -> list[str]:
    """The lines of the guide between two comments, without the fences."""
    text = GUIDE.read_text().partition(f"<!-- {name} -->\n")[2]
    return text.partition(f"<!-- end of {name} -->")[0].strip().splitlines()[1:-1]


@pytest.mark.parametrize("name", ["tutorial crash", "tutorial ops"])
def test_guide_shows_what_is_printed(name: str, run: Run, tmp_path: Path) -> None:
    _, out, _ = run(crash(NCCL, "2.10", COMMON).write(tmp_path))
    printed = [line for line in out.splitlines() if "<module>" not in line]
    lines = quoted(name)
    start = printed.index(lines[0])

    assert len(lines) > 5
    assert printed[start : start + len(lines)] == lines


def test_guide_names_every_column() -> None:
    text = GUIDE.read_text()

    assert all(f"`{name}`" in text for name in {*OP_COLUMNS, *COLLECTIVE_COLUMNS})
