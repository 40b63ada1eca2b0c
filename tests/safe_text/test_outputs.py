"""No output of a command shows a secret, acts on what shows it, or loses what was said."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyarrow import parquet
from tests.diagnose.dumps import STARTED, Dumps
from tests.diagnose.scenes import at
from tests.report import samples
from tests.safe_text.baits import BAITS
from tests.safe_text.forms import Form, read_forms
from tests.safe_text.pages import parse_page, render_page
from tests.safe_text.test_escaping import is_visible
from tests.safe_text.test_secrets import make_report
from tests.tracing.data import make_event

from whystuck.cli import main
from whystuck.evidence.finding import Report
from whystuck.report.html import render_html
from whystuck.report.json import render_json
from whystuck.report.markdown import render_markdown
from whystuck.report.text import render_text
from whystuck.safe_text.escaping import escape_line
from whystuck.safe_text.values import hide_values

FORMS = [
    *read_forms("secret_forms.txt"), *read_forms("other_forms.txt"),
    *read_forms("service_forms.txt"),
]  # fmt: skip
# A place in a log or a table has no line breaks.
LINES = [bait.replace("\n", " ") for bait in BAITS if bait.strip()]
RENDERERS: dict[str, Callable[[Report], str]] = {
    "text": lambda report: render_text(report, color=False, width=95),
    "json": lambda report: render_json(report).decode(),
    "md": render_markdown,
    "html": render_html,
}
Run = Callable[..., str]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: object) -> str:
        assert main([str(one) for one in arguments]) in (0, 1, 3)
        shown = capfd.readouterr()
        assert is_visible(shown.err.replace("\n", ""))
        return shown.out

    return run_command


def write_job(folder: Path, texts: list[str]) -> Path:
    """Logs of four ranks that fail with each of the texts, and dumps whose names are the texts."""
    for rank in range(4):
        lines: list[str] = []
        for number, text in enumerate(texts):
            if number % 4 == rank:
                lines += [
                    "Traceback (most recent call last):",
                    '  File "/job/train.py", line 22, in step',
                    f"    run({text})",
                    f"ValueError: {text}",
                ]
        path = folder / f"rank-{rank}" / "rank.log"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join([*lines, ""]), errors="surrogatepass")
    return folder


def write_dumps(folder: Path, texts: list[str]) -> Path:
    """Dumps of four ranks; each text is the name of a group, an op, a function and a file."""
    folder.mkdir()
    groups: dict[str, tuple[str, Sequence[int]]] = {
        str(number): (text, (0, 1)) for number, text in enumerate(texts, 1)
    }
    dumps = Dumps(groups=groups)
    for number, text in enumerate(texts, 1):
        site = (at(f"/job/{text} .py", 5, text),)
        dumps.op([0], f"all {text}", site, group=str(number), state=STARTED)
    return dumps.write(folder)


def write_trace(path: Path, texts: list[str]) -> Path:
    events = [
        make_event("cuda_runtime", "cudaLaunchKernel", 0, 5, correlation=1),
        make_event("user_annotation", "ProfilerStep#1", 0, 900),
    ]
    for number, text in enumerate(texts):
        start = 10.0 + number
        events.append(make_event("kernel", text, start, 1, device=0, stream=7, correlation=number))
        events.append(make_event("cpu_op", text, start, 1))
    info = {"rank": 0, "world_size": 1, "pg_config": [{"pg_name": texts[0], "pg_desc": texts[1]}]}
    root = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}
    path.write_text(json.dumps(root))
    return path


def check_html(text: str) -> None:
    page = parse_page(text)
    assert not {"a", "img", "b", "!--"} & set(page.elements)
    assert page.elements["script"] == page.elements["style"] == 1
    assert not page.addresses
    assert not [name for name in page.attributes if name.startswith("on")]


@pytest.mark.parametrize("bait", BAITS, ids=lambda bait: ascii(bait)[:30])
def test_no_format_of_a_report_acts(bait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "HOSTILE", "word")
    plain = samples.hostile()
    monkeypatch.setattr(samples, "HOSTILE", bait or "word")
    report = samples.hostile()

    text = RENDERERS["text"](report)
    assert is_visible(text.replace("\n", ""))
    written = RENDERERS["json"](report)
    assert is_visible(written.replace("\n", ""))
    assert json.loads(written)["findings"][0]["ruled_out"] == [
        (bait or "word").encode("utf-8", "replace").decode()
    ]
    page, without = render_page(render_markdown(report)), render_page(render_markdown(plain))
    assert set(page.elements) | {"blockquote"} == set(without.elements)
    assert page.elements["table"] == without.elements["table"]
    assert page.elements["td"] == without.elements["td"]
    assert page.addresses == without.addresses == []
    page, without = parse_page(render_html(report)), parse_page(render_html(plain))
    assert set(page.elements - without.elements) <= {"code"}
    assert page.addresses == without.addresses
    assert set(page.attributes) == set(without.attributes)
    assert is_visible(re.sub(r"\n", "", page.text))


def test_commands_on_hostile_logs_act_on_nothing(tmp_path: Path, run: Run) -> None:
    folder = write_job(tmp_path / "job", LINES)

    for arguments in (["diagnose", folder], ["logs", folder], ["logs", folder, "--list"]):
        assert is_visible(run(*arguments).replace("\n", ""))
    for arguments in (["diagnose", folder], ["logs", folder]):
        page = render_page(run(*arguments, "--format", "md"))
        assert not {"a", "img", "script", "b", "i", "svg", "!--"} & set(page.elements)
        check_html(run(*arguments, "--format", "html"))
        written = run(*arguments, "--format", "json")
        assert is_visible(written.replace("\n", ""))
        json.loads(written)


def test_the_list_and_tables_of_errors_hold_all_texts(tmp_path: Path, run: Run) -> None:
    folder = write_job(tmp_path / "job", ["see " + line for line in LINES])

    written = run("logs", folder, "--list", "--format", "json")
    listed = json.loads(written)["errors"]
    for form in ("csv", "json", "parquet"):
        run("logs", folder, "--tables", tmp_path, "--tables-format", form)

    assert is_visible(written.replace("\n", ""))
    table = (tmp_path / "errors.json").read_text()
    assert is_visible(table.replace("\n", ""))
    assert [row["text"] for row in json.loads(table)] == [row["text"] for row in listed]
    with (tmp_path / "errors.csv").open(newline="") as stream:
        cells = [row["text"] for row in csv.DictReader(stream)]
    assert cells == [escape_line(row["text"]) for row in listed]
    assert is_visible((tmp_path / "errors.csv").read_text().replace("\n", ""))
    kept = parquet.read_table(tmp_path / "errors.parquet").column("text").to_pylist()
    assert kept == [row["text"] for row in listed]


def test_the_outputs_of_fr_act_on_nothing(tmp_path: Path, run: Run) -> None:
    texts = [line.encode("utf-8", "replace").decode() for line in LINES if len(line) < 400]
    folder = write_dumps(tmp_path / "dumps", texts)

    assert is_visible(run("fr", folder, "-j").replace("\n", ""))
    page = render_page(run("fr", folder, "-j", "--format", "md"))
    assert not {"a", "img", "script", "b", "i", "svg", "!--"} & set(page.elements)
    assert is_visible(run("fr", folder, "-j", "--format", "json").replace("\n", ""))
    for name in ("ops.json", "ops.jsonl", "ops.parquet"):
        run("fr", folder, "-o", tmp_path / name)
    tables = (tmp_path / "ops.json").read_text()
    assert is_visible(tables.replace("\n", ""))
    assert is_visible((tmp_path / "ops.jsonl").read_text().replace("\n", ""))
    assert {row["group_desc"] for row in json.loads(tables)["ops"]} == set(texts)
    kept = parquet.read_table(tmp_path / "ops.parquet").column("group_desc").to_pylist()
    assert set(kept) == set(texts)


def test_the_outputs_of_traces_act_on_nothing(tmp_path: Path, run: Run) -> None:
    texts = [line.encode("utf-8", "replace").decode() for line in LINES if len(line) < 400]
    trace = write_trace(tmp_path / "rank0.json", texts)

    for form in ("text", "json", "md", "html"):
        shown = run("trace", "analyze", trace, "--format", form)
        if form == "md":
            assert not {"a", "img", "script", "b"} & set(render_page(shown).elements)
        elif form == "html":
            check_html(shown)
        else:
            assert is_visible(shown.replace("\n", ""))
    for form in ("csv", "json"):
        run("trace", "analyze", trace, "--tables", tmp_path, "--tables-format", form)
        tables = list(tmp_path.glob(f"*.{form}"))
        assert len(tables) > 1
        for path in tables:
            if path != trace:
                assert is_visible(path.read_text().replace("\n", "")), path.name
                assert form == "json" or "\n=" not in path.read_text()


@pytest.mark.parametrize("form", RENDERERS)
def test_no_format_of_a_report_shows_a_form_of_a_secret(form: str) -> None:
    shown = [one.text for one in FORMS if find_leak(one, RENDERERS[form])]

    assert shown == []


def find_leak(form: Form, render: Callable[[Report], str]) -> bool:
    report = hide_values(make_report(form.text))
    without = render(hide_values(make_report("nothing")))
    return any(form.shown_in(line) for line in render(report).splitlines() if line not in without)


def test_no_output_of_a_command_shows_a_secret(tmp_path: Path, run: Run) -> None:
    folder = write_job(tmp_path / "job", [form.text for form in FORMS])
    dumps = write_dumps(tmp_path / "dumps", [form.text for form in FORMS[::5]])
    trace = write_trace(tmp_path / "rank0.json", [form.text for form in FORMS])
    out = tmp_path / "out"

    said = [run("logs", folder, "--list"), run("logs", folder, "--list", "--format", "json")]
    for form in ("csv", "json", "parquet"):
        run("logs", folder, "--tables", out, "--tables-format", form)
        run("trace", "analyze", trace, "--tables", out, "--tables-format", form)
    for name in ("ops.jsonl", "ops.parquet"):
        run("fr", dumps, "-o", out / name)
    said += [run("fr", dumps, "-j"), run("fr", dumps, "-j", "--format", "json")]
    for path in out.iterdir():
        if path.suffix == ".parquet":
            said += map(str, parquet.read_table(path).to_pylist())
        else:
            said.append(path.read_text())
    whole = "\n".join(said)

    assert whole.count("<secret>") > len(FORMS)
    assert [form.text for form in FORMS if form.shown_in(whole, 10)] == []
