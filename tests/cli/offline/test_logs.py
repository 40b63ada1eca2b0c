"""`whystuck logs` on the logs of real programs' formats: the report, the list, the tables."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow import parquet
from tests.launch.running import WHYSTUCK, clean_environment
from tests.logs.cases import CORPUS, load_case
from tests.logs.pad import Size, pad_case

from whystuck.cli import main
from whystuck.evidence.logs.report import LogRecord

OUT_OF_MEMORY = CORPUS / "c206-one-rank-26"
KILLED_BY_KERNEL = CORPUS / "c202-cgroup-kill"
CUT_OFF = CORPUS / "tie-truncated"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("NO_COLOR", "FORCE_COLOR", "WHYSTUCK_SIGNATURES"):
        monkeypatch.delenv(name, raising=False)

    def run_command(*arguments: str | Path) -> Result:
        code = main(["logs", *map(str, arguments)])
        shown = capfd.readouterr()
        return Result(code, shown.out, shown.err)

    return run_command


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_report_names_rank_line_cause_and_what_to_do(run: Run) -> None:
    result = run(OUT_OF_MEMORY)

    assert (result.code, result.err) == (1, "")
    assert "error[C206]: rank 4 ran out of device memory" in result.out
    assert "--> /app/model.py:210 in forward · rank 4" in result.out
    assert "train.log row 8" in result.out
    assert "= fix: " in result.out
    assert "verdict: crashed" in result.out
    assert "1 log, 3.3 KiB" in result.out


def test_report_shows_who_said_what_first_with_file_and_line(run: Run) -> None:
    result = run(OUT_OF_MEMORY)

    _, _, table = result.out.partition("first errors in the logs, of ")
    lines = table.splitlines()
    assert lines[1].startswith("  -> ")
    assert "rank 4" in lines[1]
    assert "train.log:8  torch.OutOfMemoryError: CUDA out of memory" in lines[1]
    assert "ranks 0-1,7" in lines[2]
    assert "DistBackendError" in lines[2]


def test_report_fits_the_screen_with_many_ranks(run: Run, tmp_path: Path) -> None:
    pad_case(load_case(OUT_OF_MEMORY), Size(512, seed=3, interleave=True)).write(tmp_path)
    result = run(tmp_path)

    assert result.code == 1
    assert "rank 4 ran out of device memory" in result.out
    assert len(result.out.splitlines()) < 90
    assert max(map(len, result.out.splitlines())) < 200


def test_clocks_that_are_off_are_told(run: Run, tmp_path: Path) -> None:
    case = load_case(CORPUS / "c209-store-gone")
    pad_case(case, Size(64, seed=2, skew=60)).write(tmp_path)
    report = json.loads(run(tmp_path, "--format", "json").out)

    offsets = report["logs"]["clocks"]
    assert offsets
    assert all(abs(one["ahead_s"]) > one["error_s"] > 0 for one in offsets)
    assert {one["reference"] for one in offsets} != {one["clock"] for one in offsets}


def test_json_has_the_summary_of_the_logs(run: Run) -> None:
    report = json.loads(run(OUT_OF_MEMORY, "--format", "json").out)

    logs = report["logs"]
    assert (logs["files"], logs["attempts"]) == (1, 1)
    assert logs["bytes"] == sum(path.stat().st_size for path in OUT_OF_MEMORY.glob("*.log"))
    first = logs["first"][0]
    assert (first["ranks"], first["artifact"], first["row"]) == ("4", "train.log", 8)
    assert (first["signature"], first["is_cause"]) == ("cuda.oom", True)
    assert "logs" in report["coverage"]["sources"]


@pytest.mark.parametrize("form", ["html", "md"])
def test_pages_show_the_first_errors(run: Run, form: str) -> None:
    result = run(OUT_OF_MEMORY, "--format", form)

    assert result.code == 1
    assert "first errors in the logs, of " in result.out
    assert "train.log:8" in result.out
    assert "cause" in result.out


def test_unknown_errors_are_shown_once_with_their_ranks(run: Run, tmp_path: Path) -> None:
    for rank in range(4):
        text = f"step 1\nERROR flux capacitor {rank} lost sync at 0x7f{rank}a\n"
        (tmp_path / f"rank_{rank}.log").write_text(text)
    result = run(tmp_path)

    _, _, told = result.out.partition("that nobody knows:\n")
    line = told.splitlines()[0]
    assert "4x" in line
    assert "ranks 0-3" in line
    assert "ERROR flux capacitor <*> lost sync" in line


def test_logs_that_do_not_decide_end_with_3_and_say_what_would(run: Run) -> None:
    result = run(CUT_OFF)

    assert result.code == 3
    assert "inconclusive" in result.out
    assert "add the logs of all ranks" in result.out
    assert "flight recorder" not in result.out


def test_fail_on_never_ends_with_0(run: Run) -> None:
    assert run(OUT_OF_MEMORY, "--fail-on", "never").code == 0


def test_missing_path_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    result = run(tmp_path / "none")

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: cannot read `")
    assert "hint: give a log or a folder of logs" in result.err


def test_folder_without_logs_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\0\1\2" * 100)
    result = run(tmp_path)

    assert result.code == 2
    assert result.err.startswith("error: there is no log in ")
    assert "`whystuck diagnose`" in result.err


def test_packed_logs_are_read(run: Run, tmp_path: Path) -> None:
    data = (OUT_OF_MEMORY / "train.log").read_bytes()
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(data))

    assert "error[C206]: rank 4 ran out of device memory" in run(tmp_path).out


def test_other_evidence_is_passed_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes((OUT_OF_MEMORY / "train.log").read_bytes())
    folder = tmp_path / "n0" / "rank-4"
    folder.mkdir(parents=True)
    (folder / "exit.json").write_text('{"pid": 7, "signal": 9}')
    (folder / "fr.json").write_text('{"entries": [], "pg_config": {}')
    report = json.loads(run(tmp_path, "--format", "json").out)

    assert report["findings"][0]["code"] == "C206"
    assert not [gap for gap in report["gaps"] if gap["what"] == "flight recorder dump"]


def test_round_of_an_evidence_folder_is_read_whole(run: Run, tmp_path: Path) -> None:
    data = (OUT_OF_MEMORY / "train.log").read_bytes()
    round_dir = tmp_path / "rounds" / "0" / "n0"
    incident = tmp_path / "incidents" / "000"
    round_dir.mkdir(parents=True)
    incident.mkdir(parents=True)
    (round_dir / "launcher.txt").write_bytes(data)
    (incident / "incident.json").write_text('{"kind": "exit"}')

    assert "error[C206]" in run(tmp_path).out


def pipe(data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*WHYSTUCK, "logs", *arguments],
        input=data,
        capture_output=True,
        env=clean_environment(),
        timeout=120,
        check=False,
    )


def test_standard_input_is_a_log() -> None:
    done = pipe((OUT_OF_MEMORY / "train.log").read_bytes(), "-")

    assert done.returncode == 1
    assert b"error[C206]: rank 4 ran out of device memory" in done.stdout
    assert b"stdin row 8" in done.stdout
    assert done.stderr == b""


def test_empty_standard_input_is_a_usage_error() -> None:
    done = pipe(b"", "-")

    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[0] == "error: standard input is empty"


def test_list_has_every_error_in_order_with_the_first_marked(run: Run) -> None:
    result = run(KILLED_BY_KERNEL, "--list")

    lines = result.out.splitlines()
    assert result.code == 1
    assert lines[0].startswith("first cause  2026-05-11T02:07:44 ")
    assert "n0/kern.log:3" in lines[0]
    assert "oom.kernel" in lines[0]
    assert not [line for line in lines[1:] if line.startswith("first")]
    told = [line for line in lines if "rank 5 ended by SIGKILL" in line]
    assert len(told) == 1
    assert "train.log:8" in told[0]


def test_list_as_json(run: Run, tmp_path: Path) -> None:
    result = run(KILLED_BY_KERNEL, "--list", "--format", "json", "-o", tmp_path / "list.json")

    listed = json.loads((tmp_path / "list.json").read_text())
    assert (result.code, result.out, listed["schema_version"]) == (1, "", 1)
    errors = listed["errors"]
    assert set(errors[0]) == set(LogRecord.__struct_fields__)
    assert [one["is_first"] for one in errors].count(True) == 1
    times = [one["time_ns"] for one in errors if one["time_ns"] is not None]
    assert times == sorted(times)
    assert "context" not in {one["role"] for one in errors}


def test_list_has_no_page(run: Run) -> None:
    result = run(KILLED_BY_KERNEL, "--list", "--format", "html")

    assert result.code == 2
    assert result.err.startswith("error: `--list` cannot be written as html\n")


def test_tables_hold_the_same_errors_in_all_forms(run: Run, tmp_path: Path) -> None:
    for form in ("csv", "json", "parquet"):
        run(KILLED_BY_KERNEL, "--tables", tmp_path, "--tables-format", form)

    rows = read_rows(tmp_path / "errors.csv")
    objects = json.loads((tmp_path / "errors.json").read_text())
    columns = parquet.read_table(tmp_path / "errors.parquet").to_pylist()
    assert list(rows[0]) == list(LogRecord.__struct_fields__)
    assert objects == columns
    assert [row["text"] for row in rows] == [one["text"] for one in objects]
    assert (rows[0]["artifact"], rows[0]["row"], rows[0]["is_first"]) == ("n0/kern.log", "3", "1")


def test_diagnose_writes_the_same_table(run: Run, tmp_path: Path) -> None:
    run(KILLED_BY_KERNEL, "--tables", tmp_path / "logs")
    main(["diagnose", str(KILLED_BY_KERNEL), "--tables", str(tmp_path / "all")])

    assert (tmp_path / "all/errors.csv").read_bytes() == (tmp_path / "logs/errors.csv").read_bytes()
    assert (tmp_path / "all/ops.csv").exists()


SECRET_LOG = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/jo/train.py", line 12, in <module>
[rank0]:     connect("postgres://jo:pa55word@db.corp:5432/x")
[rank0]: OperationalError: postgres://jo:pa55word@db.corp:5432/x refused, password=pa55word
[rank0]: ERROR store api_key=pa55word0123456789 is not valid
"""


@pytest.mark.parametrize("form", ["text", "json", "html", "md"])
def test_no_form_of_the_report_shows_a_secret(run: Run, tmp_path: Path, form: str) -> None:
    (tmp_path / "train.log").write_text(SECRET_LOG)
    result = run(tmp_path, "--format", form, "--tables", tmp_path / "out")
    listed = run(tmp_path / "train.log", "--list")
    table = (tmp_path / "out/errors.csv").read_text()

    assert "OperationalError" in result.out
    for shown in (result.out, listed.out, table):
        assert "pa55word" not in shown
        assert "secret" in shown


def test_redact_goes_further(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(SECRET_LOG)
    shown = run(tmp_path, "--redact").out + run(tmp_path, "--redact", "--list").out
    shown += run(tmp_path, "--redact", "--tables", tmp_path / "out").out
    shown += (tmp_path / "out/errors.csv").read_text()

    assert "db.corp" not in shown
    assert "/home/jo" not in shown
    assert "train.py" in shown


def test_signature_of_the_user_names_the_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "site.csv").write_text(
        "id,regex,role,finding,class\nsite.quota,scratch quota exceeded on \\S+,cause,C208,quota\n"
    )
    (tmp_path / "rank_0.log").write_text("step 1\nscratch quota exceeded on /scratch/jo\n")
    result = run(tmp_path / "rank_0.log", "--signatures", tmp_path / "site.csv", "--list")

    assert "site.quota" in result.out
    assert "rank_0.log:2" in result.out
    assert "site.quota" not in run(tmp_path / "rank_0.log", "--list").out


def test_hostile_lines_are_safe_to_print(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_bytes(
        b"\x1b[2J\x1b]0;owned\x07ERROR =cmd|' /C calc'!A0 \xff\xfe\x00 </script><b>\n"
        b"RuntimeError: \x1b[31m</script><script>alert(1)</script>\n" * 3
    )
    for form in ("text", "md", "json"):
        assert "\x1b" not in run(tmp_path, "--format", form).out
    assert "\x1b" not in run(tmp_path, "--list").out
    assert "<script>alert" not in run(tmp_path, "--format", "html").out
    run(tmp_path, "--tables", tmp_path / "out")
    cells = [cell for row in read_rows(tmp_path / "out/errors.csv") for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]


def test_reader_that_leaves_is_no_error() -> None:
    command = [*WHYSTUCK, "logs", str(KILLED_BY_KERNEL), "--list"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()

    assert said == b""


def test_example_of_the_readme_is_what_is_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = CORPUS.parents[2]
    readme = (root / "README.md").read_text()
    block = readme.partition("<!-- logs output -->\n```text\n")[2]
    shown = block.partition("```\n<!-- end of logs output -->")[0]
    monkeypatch.chdir(root)

    assert shown == run("tests/logs/corpus/c202-cgroup-kill").out
    guide = (root / "docs/guides/logs.md").read_text()
    table = guide.partition("stands who said what first:\n\n```text\n")[2].partition("```")[0]
    assert table in shown
