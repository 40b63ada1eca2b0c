"""Processes of the tests take the long files first, and one of them those that start no job."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.schedule import choose_file

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests_schedule import ByFile

def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)
"""
CASES = """
import os, pytest
{start}
@pytest.mark.parametrize("case", range({count}))
def test_case(case):
    with open("{name}", "a") as file:
        file.write(f"{{os.getpid()}}\\n")
"""


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_longest_file_of_the_kind_is_chosen_and_the_other_kind_where_there_is_none(
    tmp_path: Path,
) -> None:
    job = _write(tmp_path, "test_job.py", "def test(): torchrun(2)")
    other = _write(tmp_path, "test_other.py", "def test(): assert 1")
    files = [(other, 1000), (job, 2), (job, 3), (other, 2000)]

    assert choose_file(files, prefers_jobs=True) == 2
    assert choose_file(files, prefers_jobs=False) == 3
    assert choose_file([(other, 1)], prefers_jobs=True) == 0
    assert choose_file([(job, 1)], prefers_jobs=False) == 0


def test_each_file_is_run_once_and_by_one_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(tests_schedule=(ROOT / "tests/schedule.py").read_text())
    pytester.makeconftest(CONFTEST)
    counts = {f"file{place}": place for place in range(1, 8)}
    for name, count in counts.items():
        start = "import subprocess" if count % 2 else ""
        text = CASES.format(start=start, count=count, name=name)
        _write(pytester.path, f"test_{name}.py", text)

    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup")

    done.assert_outcomes(passed=sum(counts.values()))
    for name, count in counts.items():
        seen = (pytester.path / name).read_text().split()
        assert len(seen) == count
        assert len(set(seen)) == 1
