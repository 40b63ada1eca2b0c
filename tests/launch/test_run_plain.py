"""``whystuck run`` around plain commands: it must not be noticed."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.launch.running import WHYSTUCK, clean_environment, run_whystuck


def _run(tmp_path: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return run_whystuck(
        "run", "--evidence", tmp_path / "ev", "--", *command, cwd=tmp_path, environment=environment
    )


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 1", 1),
        ("exit 42", 42),
        ("kill -KILL $$", 128 + 9),
        ("kill -SEGV $$", 128 + 11),
        ("kill -TERM $$", 128 + 15),
    ],
)
def test_run_when_the_command_ends_then_keeps_its_code(
    tmp_path: Path, script: str, code: int
) -> None:
    done = _run(tmp_path, "sh", "-c", script)
    assert done.returncode == code
    assert json.loads((tmp_path / "ev/job.json").read_text())["exit_code"] == code


def test_run_then_output_is_passed_on_byte_for_byte(tmp_path: Path) -> None:
    script = r"printf 'a\r50%%\rb\n\000\377no newline'; printf 'warned\n' >&2"
    done = _run(tmp_path, "sh", "-c", script)
    assert done.stdout == b"a\r50%\rb\n\x00\xffno newline"
    assert done.stderr == b"warned\n"
    log = next((tmp_path / "ev").rglob("launcher.txt")).read_bytes()
    assert b" out " in log
    assert b" err warned" in log


def test_run_when_much_is_printed_then_nothing_is_lost(tmp_path: Path) -> None:
    code = "import sys; [print(i, 'x' * 100) for i in range(50_000)]"
    done = _run(tmp_path, sys.executable, "-c", code)
    assert done.stdout.count(b"\n") == 50_000


def test_run_when_our_reader_leaves_then_the_command_sees_a_closed_pipe(tmp_path: Path) -> None:
    command = f"{sys.executable} -m whystuck run --evidence {tmp_path}/ev -- yes | head -1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, timeout=60, check=True, cwd=tmp_path,
        env=clean_environment(),
    )  # fmt: skip
    assert done.stdout == b"y\n"


def _run_in_terminal(command: list[str], cwd: Path, answer: bytes = b"") -> tuple[int, bytes]:
    """Run a command on a terminal of its own; type ``answer`` when it says READY."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(command[0], command, clean_environment())
    seen = b""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
        if answer and b"READY" in seen:
            os.write(terminal, answer)
            answer = b""
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), seen


def test_run_on_a_terminal_then_the_command_has_one_too(tmp_path: Path) -> None:
    code = "import sys, os; print(sys.stdout.isatty(), sys.stderr.isatty(), sys.stdin.isatty())"
    command = [*WHYSTUCK, "run", "--evidence", "ev", "--", sys.executable, "-c", code]
    status, seen = _run_in_terminal(command, tmp_path)
    assert status == 0
    assert seen.strip() == b"True True True"


# Of a rank, which writes to a terminal that is not the one of its session.
ASKS_ITS_TERMINAL = """
import os, sys
print(os.get_terminal_size(1), os.tcgetpgrp(1) == os.getpgrp(), os.tcgetpgrp(2) == os.getpgrp())
try:
    os.tcgetpgrp(os.openpty()[1])
except OSError as error:
    print(error)
"""


def test_run_on_a_terminal_then_a_rank_has_its_size_and_its_foreground(tmp_path: Path) -> None:
    rank = ["env", "RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=1", sys.executable, "-c"]
    wide = f"import os; os.system('stty rows 31 cols 97'); exec({ASKS_ITS_TERMINAL!r})"
    _, bare = _run_in_terminal([*rank, wide], tmp_path)
    command = f"stty rows 31 cols 97; exec {shlex.join([*rank, ASKS_ITS_TERMINAL])}"
    whole = [*WHYSTUCK, "run", "--no-agent", "--evidence", "ev", "--", "sh", "-c", command]
    status, seen = _run_in_terminal(whole, tmp_path)
    assert (status, seen) == (0, bare)
    assert b"columns=97, lines=31) True True" in seen


def test_run_when_ctrl_c_is_typed_then_ends_with_130(tmp_path: Path) -> None:
    code = "import time; print('READY', flush=True); time.sleep(60)"
    command = [*WHYSTUCK, "run", "--evidence", "ev", "--", sys.executable, "-c", code]
    status, seen = _run_in_terminal(command, tmp_path, answer=b"\x03")
    assert status == 130
    # once: from the terminal, not again from us
    assert seen.count(b"KeyboardInterrupt") == 1


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)]
)
def test_run_when_signalled_then_passes_it_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = subprocess.Popen(
        [*WHYSTUCK, "run", "--evidence", "ev", "--", "sh", "-c", "echo READY; exec sleep 60"],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"READY\n"
    process.send_signal(number)
    assert process.wait(timeout=30) == code
    process.stdout.close()


RANK_THEN_WAIT = """
import os, subprocess, sys, time
child = "import time; print('RANK', flush=True); time.sleep(60)"
env = dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
rank = subprocess.Popen([sys.executable, "-c", child], env=env, start_new_session=True)
print(os.getpid(), rank.pid, flush=True)
time.sleep(60)
"""


def test_run_when_the_launcher_is_killed_then_its_ranks_stay_as_without_us(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*WHYSTUCK, "run", "--evidence", "ev", "--", sys.executable, "-c", RANK_THEN_WAIT],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    lines = {process.stdout.readline(), process.stdout.readline()}
    launcher, rank = next(map(int, line.split()) for line in lines if line != b"RANK\n")
    os.kill(launcher, signal.SIGKILL)
    assert process.wait(timeout=60) == 128 + 9
    process.stdout.close()
    assert psutil.Process(rank).is_running()
    os.kill(rank, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run"], 2, "there is no command to run"),
        (["run", "--"], 2, "there is no command to run"),
        (["run", "--stall-after", "soon", "--", "true"], 2, "is not a number of seconds"),
        (["run", "--", "no-such-command"], 127, "is not found"),
        (["run", "--", "./plain.txt"], 126, "cannot be run"),
        (["run", "--evidence", "plain.txt/x", "--", "true"], 125, "cannot be written"),
    ],
)
def test_run_when_it_cannot_start_then_says_why_in_one_sentence(
    tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    (tmp_path / "plain.txt").write_text("not a program")
    done = run_whystuck(*arguments, cwd=tmp_path)
    assert done.returncode == code
    error, hint = done.stderr.decode().splitlines()
    assert says in error
    assert hint.startswith("hint: ")
    assert done.stdout == b""


SHOW_TRACES = """
import os, sys
print(sorted(k for k in os.environ if "WHYSTUCK" in k and k != "WHYSTUCK_DISABLE"))
print([m for m in sys.modules if "whystuck" in m], [p for p in sys.path if "whystuck" in p])
print("sitecustomize" in sys.modules and "whystuck" in str(sys.modules["sitecustomize"]))
"""


def test_run_when_disabled_then_leaves_no_trace_in_the_job(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW_TRACES)
    done = _run(tmp_path, sys.executable, str(script), WHYSTUCK_DISABLE="1", RANK="0")
    assert done.stdout.splitlines()[0] == b"[]"
    assert done.stdout.splitlines()[2] == b"False"
    assert b"'_whystuck_probe'" not in done.stdout


def test_run_then_the_job_folder_is_removed(tmp_path: Path) -> None:
    code = "import os; print(os.environ['WHYSTUCK_JOB_DIR'])"
    done = _run(tmp_path, sys.executable, "-c", code)
    folder = Path(done.stdout.decode().strip())
    assert folder.name.startswith("whystuck-")
    assert not folder.exists()


def test_run_when_the_rank_prints_then_its_log_has_capture_times(tmp_path: Path) -> None:
    code = "import sys; print('hello'); print('careful', file=sys.stderr)"
    done = _run(tmp_path, sys.executable, "-c", code, RANK="3", LOCAL_RANK="3", WORLD_SIZE="4")
    assert done.stdout == b"hello\n"
    assert done.stderr == b"careful\n"
    log = next((tmp_path / "ev").rglob("rank-3/log.txt")).read_text().splitlines()
    assert sorted(line.split(" ", 1)[1] for line in log) == ["err careful", "out hello"]


def test_run_when_the_user_has_a_sitecustomize_then_it_still_runs(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    # whystuck's own interpreter reads the variable too; it is not what is asked about
    text = "import sys; 'whystuck' in sys.orig_argv or print('mine')"
    (tmp_path / "own/sitecustomize.py").write_text(text)
    done = _run(tmp_path, sys.executable, "-c", "print('job')", PYTHONPATH=str(tmp_path / "own"))
    assert done.stdout == b"mine\njob\n"
