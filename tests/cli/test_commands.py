from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from msgspec import structs
from tests.report import samples

from whystuck import __version__
from whystuck.cli import COMMANDS, main, whystuck
from whystuck.cli.output import exit_code_for
from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Report, Severity, Verdict
from whystuck.pipeline import Choice

Run = Callable[..., tuple[int, str, str]]

# The command line in a process of its own, with a pipeline that answers with a sample.
STUB = """
import sys, types
from tests.report import samples
stub = types.ModuleType("whystuck.pipeline")
stub.Choice = lambda **how: how
stub.diagnose_paths = lambda paths, progress, choice: samples.ALL[paths[0].name]()
sys.modules["whystuck.pipeline"] = stub
from whystuck.cli import main
sys.exit(main())
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run_command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one entry for each sample; diagnosing the entry gives the sample."""
    stub = ModuleType("whystuck.pipeline")

    def diagnose_paths(paths: list[Path], progress: object, choice: object) -> Report:
        return samples.ALL[paths[0].name]()

    stub.diagnose_paths = diagnose_paths  # type: ignore[attr-defined]
    stub.Choice = Choice  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "whystuck.pipeline", stub)
    for name in samples.ALL:
        (tmp_path / name).mkdir()
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR"}}
    return subprocess.Popen(
        [sys.executable, "-c", STUB, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**kept, **environment},
    )


def test_no_command_shows_the_help_on_stderr(run: Run) -> None:
    code, out, err = run()

    assert (code, out) == (2, "")
    assert "Usage: whystuck" in err
    assert "  diagnose  Tell from files" in err


def test_unknown_command_suggests_the_nearest(run: Run) -> None:
    assert run("diagnos") == (
        2, "", "error: no command `diagnos`\nhint: did you mean `whystuck diagnose`?\n"
    )  # fmt: skip


def test_unknown_command_that_resembles_nothing_points_to_the_list(run: Run) -> None:
    code, _, err = run("\x1b[2Jzzz")

    assert code == 2
    assert err == (
        "error: no command `\\x1b[2Jzzz`\nhint: `whystuck --help` lists all commands\n"
    )  # fmt: skip


def test_unknown_option_is_one_sentence_and_a_hint(run: Run) -> None:
    code, out, err = run("diagnose", "--nope", "x")

    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: no such option '--nope'",
        "hint: `whystuck diagnose --help` shows how it is used",
    ]


def test_version_is_the_version(run: Run) -> None:
    assert run("--version") == (0, f"whystuck {__version__}\n", "")


def test_click_runner_finds_the_group() -> None:
    result = CliRunner().invoke(whystuck, ["--help"])

    assert result.exit_code == 0
    assert "schema" not in result.output


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_table_of_commands_matches_the_commands(entry: object) -> None:
    name, target, text, hidden = (
        getattr(entry, field) for field in ("name", "target", "help", "hidden")
    )
    if importlib.util.find_spec(target.partition(":")[0]) is None:
        pytest.skip("not part of this build")

    command = entry.load()  # type: ignore[attr-defined]

    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.hidden is hidden
    assert inspect.cleandoc(command.help or "").splitlines()[0] == text


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("healthy", [], 0),
        ("waiting", [], 0),
        ("waiting", ["--fail-on", "warning"], 0),
        ("stuck", [], 1),
        ("stuck", ["--fail-on", "warning"], 1),
        ("stuck", ["--fail-on", "never"], 0),
        ("inconclusive", [], 3),
        ("inconclusive", ["--fail-on", "never"], 3),
    ],
)
def test_exit_code_follows_the_findings(
    run: Run, folder: Path, name: str, arguments: list[str], expected: int
) -> None:
    assert run("diagnose", str(folder / name), *arguments)[0] == expected


@pytest.mark.parametrize(
    ("form", "start_of_output"),
    [("text", " read 4"), ("json", '{\n  "schema_'), ("html", "<!doctype"), ("md", "**stuck**")],
)
def test_report_goes_to_stdout_or_to_a_file(
    run: Run, folder: Path, form: str, start_of_output: str
) -> None:
    target = folder / "report"

    printed = run("diagnose", str(folder / "stuck"), "--format", form)
    written = run("diagnose", str(folder / "stuck"), "--format", form, "-o", str(target))

    assert printed[1].startswith(start_of_output)
    assert printed[2] == ""
    assert written == (1, "", "")
    assert target.read_text(encoding="utf-8") == printed[1]
    assert target.stat().st_mode & 0o111 == 0
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_file_that_cannot_be_written_is_a_usage_error(run: Run, folder: Path) -> None:
    code, out, err = run("diagnose", str(folder / "stuck"), "-o", str(folder / "no" / "report"))

    assert (code, out) == (2, "")
    assert err.startswith(f"error: cannot write `{folder}/no/report`: No such file")
    assert err.count("\n") == 2


def test_report_can_be_written_to_a_device_or_through_a_link(run: Run, folder: Path) -> None:
    (folder / "link").symlink_to(folder / "target")

    assert run("diagnose", str(folder / "stuck"), "-o", os.devnull)[0] == 1
    assert run("diagnose", str(folder / "stuck"), "-o", str(folder / "link"))[0] == 1

    assert Path(os.devnull).is_char_device()
    assert (folder / "link").is_symlink()
    assert (folder / "target").read_text(encoding="utf-8").startswith(" read 4")


@pytest.mark.parametrize("path", ["/no/such/folder", "", "a\0b"])
def test_missing_path_is_a_usage_error(run: Run, path: str) -> None:
    code, out, err = run("diagnose", path)

    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_diagnose_without_a_path_is_a_usage_error(run: Run) -> None:
    code, _, err = run("diagnose")

    assert code == 2
    assert err.startswith("error: missing argument 'PATH...'\nhint: ")


def test_redact_hides_in_every_format(run: Run, folder: Path) -> None:
    for form in ("text", "json", "html", "md"):
        _, out, _ = run("diagnose", str(folder / "stuck"), "--redact", "--format", form)
        assert "train.py" in out
        assert "/home/ann" not in out


@pytest.mark.parametrize(
    ("arguments", "environment", "is_colored"),
    [
        ([], {}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colour_obeys_option_then_environment_then_terminal(
    run: Run,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    is_colored: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    before = run(*arguments, "diagnose", str(folder / "stuck"))
    after = run("diagnose", str(folder / "stuck"), *arguments)

    assert ("\x1b[" in before[1]) is is_colored
    assert after == before


@pytest.mark.parametrize(
    ("problem", "code", "message"),
    [
        (
            UsageError("no dump in `x`", hint="look at y"),
            2,
            "error: no dump in `x`\nhint: look at y\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_problem_of_the_pipeline_is_told_without_a_traceback(
    run: Run,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: BaseException,
    code: int,
    message: str,
) -> None:
    def fail(paths: list[Path], progress: object, choice: object) -> Report:
        raise problem

    monkeypatch.setattr(sys.modules["whystuck.pipeline"], "diagnose_paths", fail)

    got = run("diagnose", str(folder / "stuck"))

    assert got[0] == code
    assert got[2].strip() == message.strip()


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", "stuck"],
        ["diagnose", "stuck", "--format", "json"],
        ["diagnose", "stuck", "--format", "html"],
        ["schema"],
        ["--help"],
    ],
)
def test_closed_pipe_ends_quietly(folder: Path, arguments: list[str]) -> None:
    arguments = [str(folder / word) if word == "stuck" else word for word in arguments]
    process = start(*arguments)
    assert process.stdout is not None
    process.stdout.close()

    assert process.stderr is not None
    with process.stderr as stream:
        said = stream.read()
    code = process.wait(timeout=60)

    assert said == ""
    assert code in {0, 1, 141}


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_streams_that_the_shell_has_closed_are_no_error(closed: str) -> None:
    command = f'exec "{sys.executable}" -m whystuck schema {closed}'
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)

    assert done.stderr == ""
    assert done.returncode == 0


def test_stdout_that_knows_only_ascii_gets_question_marks(folder: Path) -> None:
    process = start("diagnose", str(folder / "stuck"), PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=60)

    assert out.startswith(" read 4 of 4 ranks ? 1 node")
    assert err == ""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    if arguments[0] == "run" and importlib.util.find_spec("whystuck.cli.run.run") is None:
        pytest.skip("not part of this build")
    heavy = (
        ["numpy", "rich", "jinja2", "msgspec", "torch"] if arguments == ["--help"] else ["torch"]
    )
    program = (
        "import sys; from whystuck.cli import main; code = main(sys.argv[1:]); "
        f"sys.exit(code or ' '.join(m for m in {heavy!r} if m in sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert done.stderr.strip() == ""


class ExtraCollective:
    """A rank made a collective that no other rank made. The rest is later by one.

    ## What it means

    All *wait*.
    """

    code, name, severity = "H102", "extra-collective", SimpleNamespace(value="error")


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = ModuleType("whystuck.diagnose"), ModuleType("whystuck.diagnose.rules")
    module.RULES = (ExtraCollective,)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "whystuck.diagnose", package)
    monkeypatch.setitem(sys.modules, "whystuck.diagnose.rules", module)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("word", ["H102", "h102", "extra-collective"])
def test_explain_prints_the_page_of_a_rule(run: Run, word: str) -> None:
    page = (
        "# H102 extra-collective (error)\n\n"
        "A rank made a collective that no other rank made. The rest is later by one.\n\n"
        "## What it means\n\nAll *wait*.\n"
    )

    assert run("explain", word) == (0, page, "")


@pytest.mark.usefixtures("rules")
def test_explain_renders_markdown_in_colour(run: Run) -> None:
    code, out, _ = run("--color", "always", "explain", "H102")

    assert code == 0
    assert "\x1b[" in out
    assert "*wait*" not in out


@pytest.mark.usefixtures("rules")
def test_explain_without_a_code_lists_all(run: Run) -> None:
    code, out, _ = run("explain")

    assert code == 0
    missing, failed, extra = out.splitlines()
    assert missing.startswith("E901  evidence-missing  A part of the evidence is missing, and ")
    assert failed.startswith("E902  rule-failed       A rule of whystuck, or another part ")
    assert extra == "H102  extra-collective  A rank made a collective that no other rank made."


@pytest.mark.usefixtures("rules")
def test_explain_of_an_unknown_code_names_the_nearest(run: Run) -> None:
    code, out, err = run("explain", "extra-colective")

    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: no finding is called `extra-colective`",
        "hint: did you mean `whystuck explain extra-collective`?",
    ]


@pytest.fixture
def broken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at which whystuck fails."""

    def read(table: dict[str, str]) -> str:
        return table["token=hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\x1b[31m"]

    def fail(*_: object) -> Report:
        raise KeyError(read({}))

    monkeypatch.setattr(sys.modules["whystuck.pipeline"], "diagnose_paths", fail)
    return folder / "stuck"


def test_bug_of_ours_is_70_and_two_lines(run: Run, broken: Path) -> None:
    code, out, err = run("diagnose", str(broken))

    assert (code, out) == (70, "")
    first, second = err.splitlines()
    assert first.startswith("error: whystuck itself failed: KeyError: ")
    assert "<secret>" in first
    assert "\x1b" not in err
    assert second == "hint: report this as a bug of whystuck; `--debug` prints the traceback"


@pytest.mark.parametrize("is_first", [True, False])
def test_debug_prints_the_traceback(run: Run, broken: Path, is_first: bool) -> None:
    words = ["diagnose", str(broken)]
    code, _, err = run(*(["--debug", *words] if is_first else [*words, "--debug"]))

    assert code == 70
    assert err.startswith("Traceback (most recent call last):")
    assert "in read" in err
    assert run(*words)[2].startswith("error: ")


def test_explain_of_a_failed_rule(run: Run) -> None:
    code, out, _ = run("explain", "E902")

    assert code == 0
    assert out.startswith("# E902 rule-failed (note)")
    assert run("explain", "rule-failed")[1] == out


@pytest.mark.parametrize(
    ("verdict", "severity", "expected"),
    [
        ("stuck", "error", 1),
        ("stuck", "warning", 3),
        ("crashed", "warning", 3),
        ("unfit", "warning", 3),
        ("slow", "warning", 0),
        ("waiting", "note", 0),
        ("healthy", "note", 0),
        ("inconclusive", "note", 3),
    ],
)
def test_exit_code_of_a_verdict(verdict: str, severity: str, expected: int) -> None:
    finding = structs.replace(samples.extra_collective(), severity=Severity(severity))
    report = Report(verdict=Verdict(verdict), findings=[finding])

    assert exit_code_for(report) == expected
