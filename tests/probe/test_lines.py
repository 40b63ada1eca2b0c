"""Recording executed lines: what is kept, and that the job does not notice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launch.running import clean_environment
from tests.probe.job import PROBE_DIR, copy_probe, job_dir

from whystuck.evidence.ops.executed_lines import ExecutedLines, ExecutedThread
from whystuck.parse.stacks.executed_lines import parse_executed

SETTRACE = sys.version_info < (3, 12)


@pytest.fixture
def folder() -> Iterator[Path]:
    with job_dir() as made:
        yield made


def _run(
    tmp_path: Path, folder: Path, script: str, lines: str = "100", site: Path | None = None
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "train.py"
    path.write_text(script)
    environment = clean_environment(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", WHYSTUCK_JOB_DIR=str(folder),
        PYTHONPATH=str(site or PROBE_DIR / "site"), WHYSTUCK_TRACE_LINES=lines,
    )  # fmt: skip
    return subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def _read(folder: Path) -> ExecutedLines:
    (path,) = folder.glob("lines-*")
    return parse_executed(path.read_bytes(), rank=0)


def _main(folder: Path) -> ExecutedThread:
    return next(thread for thread in _read(folder).threads if thread.is_main)


def test_lines_of_the_user_are_kept_and_those_of_libraries_are_not(
    tmp_path: Path, folder: Path
) -> None:
    done = _run(tmp_path, folder, "import json\nx = json.dumps({})\nprint(x)\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}\n", "")
    assert [line.line for line in _main(folder).lines] == [1, 2, 3]
    assert _read(folder).method == ("settrace" if SETTRACE else "monitoring")


def test_only_the_last_lines_are_kept(tmp_path: Path, folder: Path) -> None:
    _run(tmp_path, folder, "for i in range(1000):\n    x = i\nlast = 1\n", lines="10")
    main = _main(folder)
    assert main.count > 2000
    assert [line.line for line in main.lines] == [1, 2] * 4 + [1, 3]


def test_exception_when_it_ends_the_script_then_is_the_last_line_and_prints_the_same(
    tmp_path: Path, folder: Path
) -> None:
    script = "def fail():\n    raise ValueError('x')\n\nfail()\n"
    done = _run(tmp_path, folder, script)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: x"
    assert len([line for line in done.stderr.splitlines() if "File" in line]) == 2
    assert _main(folder).lines[-1].line == 2


def test_names_and_numbers_of_threads_have_a_bound(tmp_path: Path, folder: Path) -> None:
    script = """
import threading
def work():
    x = 1
for _ in range(200):
    thread = threading.Thread(target=work, name="n" * 100)
    thread.start()
    thread.join()
gate = threading.Event()
waiting = [threading.Thread(target=gate.wait) for _ in range(3)]
for number in range(6000):
    exec(compile(f"def f{number}(): pass\\nf{number}()", "long" * 25 + ".py", "exec"))
print("done")
"""
    done = _run(tmp_path, folder, script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    read = _read(folder)
    assert 2 < len(read.threads) <= 64
    assert {len(thread.name) for thread in read.threads if not thread.is_main} == {40}
    assert read.lost_threads == 0


def test_forked_child_writes_nothing(tmp_path: Path, folder: Path) -> None:
    script = """
import os
pid = os.fork()
if pid == 0:
    for _ in range(1000):
        child = 1
    os._exit(0)
os.waitpid(pid, 0)
"""
    done = _run(tmp_path, folder, script)
    assert (done.returncode, done.stderr) == (0, "")
    assert _main(folder).count < 100


@pytest.mark.skipif(not SETTRACE, reason="sys.monitoring does not touch the trace function")
def test_debugger_is_left_alone(tmp_path: Path, folder: Path) -> None:
    script = """
import sys
seen = []
def trace(frame, event, argument):
    seen.append(event)
    return trace
def work():
    x = 1
sys.settrace(trace)
work()
sys.settrace(None)
print(seen)
"""
    done = _run(tmp_path, folder, script)
    assert done.stdout == "['call', 'line', 'return']\n"


def test_compiled_function_is_compiled_and_gives_the_same(tmp_path: Path, folder: Path) -> None:
    script = """
import torch
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()
@torch.compile(backend=counter)
def step(x):
    return (x * 2 + 1).sum()
print([step(torch.ones(4)).item() for _ in range(3)], counter.frame_count)
"""
    done = _run(tmp_path, folder, script)
    assert done.stdout == "[12.0, 12.0, 12.0] 1\n"
    assert _main(folder).lines


@pytest.mark.parametrize("lines", ["", "-5", "many", "99999999999999999999"])
def test_nonsense_in_the_variable_harms_nothing(tmp_path: Path, folder: Path, lines: str) -> None:
    done = _run(tmp_path, folder, "print('ran')\n", lines)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("lines/file.py", "        thread = threading.current_thread()\n"),
        ("lines/file.py", "        data = json.dumps([code.co_filename, code.co_name]).encode()\n"),
        ("lines/recorder.py", "    before = _time(_LINES), _time(_CALLS)\n"),
        ("lines/recorder.py", "        if file_name.startswith(self._hidden):\n"),
    ],
)
def test_broken_recorder_harms_nothing(tmp_path: Path, folder: Path, name: str, old: str) -> None:
    indent = len(old) - len(old.lstrip())
    site = copy_probe(tmp_path, name, old, f"{' ' * indent}raise RuntimeError('broken')\n{old}")
    script = """
import threading
def work():
    print("worked", flush=True)
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
"""
    done = _run(tmp_path, folder, script, site=site)
    assert (done.returncode, done.stdout, done.stderr) == (0, "worked\nworked\n", "")


def test_full_file_system_harms_nothing(tmp_path: Path, folder: Path) -> None:
    site = copy_probe(
        tmp_path, "files.py", "os.posix_fallocate(fd, 0, size)", "raise OSError(28, 'full')"
    )
    done = _run(tmp_path, folder, "print('ran')\n", site=site)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert not list(folder.glob("lines-*"))
