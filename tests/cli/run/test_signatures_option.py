"""A table of known log lines of one's own, with every command that reads logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.running import run_whystuck

from whystuck.cli import main

Run = Callable[..., tuple[int, str, str]]

TABLE = """\
[[signature]]
id = "site.quota"
regex = 'scratch quota exceeded on (?P<path>/\\S+)'
role = "cause"
finding = "C210"
meaning = "The quota of the scratch folder is used up."
suggested_action = "Remove old checkpoints."
example = "scratch quota exceeded on /scratch/me"

[[signature]]
id = "oom.kernel"
suggested_action = "Call the platform team."
"""


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run_command


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TABLE)
    return path


def test_explain_shows_a_row_of_the_user(run: Run, table: Path) -> None:
    code, out, err = run("explain", "site.quota", "--signatures", str(table))

    assert (code, err) == (0, "")
    assert out.startswith(
        "# site.quota site (error)\n\nThe quota of the scratch folder is used up.\n"
    )
    assert "    scratch quota exceeded on /scratch/me\n" in out
    assert "Such a line belongs to the finding C210.\n" in out
    assert "## What to do\n\nRemove old checkpoints.\n" in out
    assert "False alarms" not in out
    assert "Source" not in out


def test_explain_shows_our_row_with_what_the_user_changed(run: Run, table: Path) -> None:
    _, out, _ = run("explain", "oom.kernel", "--signatures", str(table))

    assert "The kernel killed a process as memory ran out." in out
    assert "Call the platform team." in out


def test_explain_lists_both_tables(run: Run, table: Path) -> None:
    _, out, _ = run("explain", "signatures", "--signatures", str(table))

    names = [line.split()[0] for line in out.splitlines()]
    assert "site.quota" in names
    assert "xid.79" in names


def test_variable_names_the_table_as_well(
    run: Run, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYSTUCK_SIGNATURES", str(table))

    assert run("explain", "site.quota")[0] == 0
    monkeypatch.setenv("WHYSTUCK_SIGNATURES", "")
    assert run("explain", "site.quota")[0] == 2


def test_row_without_words_has_a_page(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("id,regex\nsite.x,quota \x1b?exceeded\n")
    code, out, _ = run("explain", "site.x", "--signatures", str(path))

    assert code == 0
    assert "by lines that match\n\n    quota \\x1b?exceeded\n" in out
    assert "What to do" not in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,regex\nsite.x,(a+)+$\n", "signature site.x: "),
        ("id,regex\n,abcd\n", "signature in row 1: "),
        ("id,regex,example\nsite.x,abcd,efgh\n", "the regex does not match the example"),
    ],
)
def test_table_that_cannot_be_used_is_a_usage_error(
    run: Run, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(content)
    code, out, err = run("explain", "xid.79", "--signatures", str(path))

    assert (code, out) == (2, "")
    assert message in err
    assert "\nhint: " in err


@pytest.mark.parametrize("command", ["explain", "diagnose", "run"])
def test_table_that_is_not_there_is_a_usage_error(run: Run, tmp_path: Path, command: str) -> None:
    more = {"explain": ["xid.79"], "diagnose": [str(tmp_path)], "run": ["--", "true"]}
    code, _, err = run(command, "--signatures", str(tmp_path / "none.csv"), *more[command])

    assert code == 2
    assert err.startswith("error: cannot read `")
    assert list(tmp_path.iterdir()) == []


def test_run_starts_nothing_with_a_wrong_table(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("id,regex\nsite.x,(a+)+$\n")
    done = run_whystuck("run", "--signatures", "mine.csv", "--", "touch", "started", cwd=tmp_path)

    assert done.returncode == 2
    assert b"signature site.x" in done.stderr
    assert not (tmp_path / "started").exists()


def test_example_of_the_guide_can_be_used(run: Run, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/log-lines.md").read_text()
    path = tmp_path / "site.toml"
    path.write_text(guide.partition("```toml\n")[2].partition("```")[0])

    code, out, _ = run("explain", "site.quota", "--signatures", str(path))

    assert code == 0
    assert "Remove old checkpoints." in out
