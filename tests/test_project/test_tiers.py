"""Marks of tests are told from their code, and the quick tier is the same in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
JOB = """
import os, subprocess, sys
from functools import partial
import pytest

SCRIPT = "import torch\\nprint(torch.ones(1))"

def start(script):
    return subprocess.run([sys.executable, "-c", script])

def check(python=sys.executable): pass

@pytest.fixture
def child():
    return os.fork()

def test_plain(): assert "import torch" in SCRIPT
def test_helper(): start("pass")
def test_default(): check()
def test_fixture(child): pass
def test_job(): start(SCRIPT)
@pytest.mark.parametrize("run", [start])
def test_parameter(run): run("pass")
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.parametrize("case", range(100))
def test_many(case): pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with our conftest and one file of tests."""
    folder = pytester.mkdir("tests")
    (folder / "nccl_like").mkdir()
    names = (
        "__init__.py",
        "conftest.py",
        "tiers.py",
        "schedule.py",
        "backends.py",
        "own_mounts.py",
        "nccl_like/building.py",
    )
    for name in names:
        (folder / name).write_text((ROOT / "tests" / name).read_text())
    (folder / "test_jobs.py").write_text(JOB)
    pytester.makepyprojecttoml((ROOT / "pyproject.toml").read_text())
    return pytester


def collect(project: pytest.Pytester, *options: str) -> list[str]:
    done = project.runpytest_subprocess("--collect-only", "-q", *options)
    return [line.split("::")[1] for line in done.outlines if "::" in line]


def test_what_starts_a_process_is_marked_through_helpers_and_fixtures(
    project: pytest.Pytester,
) -> None:
    assert collect(project, "-m", "process") == [
        "test_helper", "test_default", "test_fixture", "test_job", "test_parameter[start]",
    ]  # fmt: skip
    assert collect(project, "-m", "torch") == ["test_job"]


PROPERTY = """
from hypothesis import given, settings, strategies as st

seen = set()

@given(st.integers(0, 10**9))
@settings(max_examples=700, deadline=None)
def test_property(number): seen.add(number)
def test_count(): assert (len(seen) > 400) == {has_all}
"""


@pytest.mark.parametrize("option", ["", "--all-examples"])
def test_property_has_all_its_examples_where_that_is_asked_for(
    project: pytest.Pytester, option: str
) -> None:
    file = project.path / "tests" / "test_property.py"
    file.write_text(PROPERTY.format(has_all=bool(option)))

    done = project.runpytest_subprocess(*[option] if option else [], str(file))

    done.assert_outcomes(passed=2)
    assert collect(project, "-m", "many_examples") == ["test_property"]


def test_quick_tier_has_no_processes_and_the_same_sample_for_one_seed(
    project: pytest.Pytester,
) -> None:
    first, again = (collect(project, "--quick") for _ in range(2))
    other = collect(project, "--quick", "--quick-seed", "1")

    assert first == again != other
    assert {name.partition("[")[0] for name in first} == {"test_plain", "test_many"}
    assert len(first) == len(other) == 17
