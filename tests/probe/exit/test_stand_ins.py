"""Builtin functions and hooks that the probe stands for: a job tells no difference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import clean_environment
from tests.probe.job import PROBE_DIR, job_dir, start_rank

IN_CLASSES = """
import os, sys
class Job:
    leave, end = sys.exit, os._exit
try:
    Job().leave(4)
except SystemExit as error:
    print(error.code, flush=True)
Job().end(7)
"""
HOOKS = """
import sys, threading
print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__)
print(sys.excepthook, threading.excepthook)
"""
OWN_HOOKS = """
import sys, threading
def hook(*error):
    print("mine", error[1])
    sys.__excepthook__(*error)
def thread_hook(args):
    print("of a thread", args.exc_value)
    threading.__excepthook__(args)
sys.excepthook, threading.excepthook = hook, thread_hook
thread = threading.Thread(target=lambda: [][1], name="own")
thread.start()
thread.join()
1 / 0
"""
CALLED = """
import sys, threading
def work():
    try:
        [][1]
    except IndexError:
        sys.excepthook(*sys.exc_info())
try:
    1 / 0
except ZeroDivisionError:
    sys.excepthook(*sys.exc_info())
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
PROMPT = "1 / 0\nimport code\ncode.interact()\n1 / 0\n"
NO_TEXT = """
class Error(Exception):
    def __str__(self):
        raise KeyError("no text")
raise Error("own")
"""
SCRIPTS = {
    "in classes": IN_CLASSES,
    "hooks": HOOKS,
    "own hooks": OWN_HOOKS,
    "called": CALLED,
    "prompt": PROMPT,
    "no text": NO_TEXT,
}


def run(folder: Path, name: str, *, watched: bool = True) -> tuple[int, str, str]:
    """Run a script as a rank without torch."""
    environment = clean_environment(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", WHYSTUCK_JOB_DIR=str(folder),
        PYTHONPATH=str(PROBE_DIR / "site"), WHYSTUCK_DISABLE="" if watched else "1",
    )  # fmt: skip
    command = [sys.executable, *(["-i", "-q"] if name == "prompt" else []), "-"]
    done = subprocess.run(
        command, input=SCRIPTS[name], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def kept(folder: Path, kind: str) -> list[Any]:
    """Return the records of one kind."""
    return [json.loads(path.read_text()) for path in folder.glob(f"{kind}-[0-9]*")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_job_ends_and_prints_as_without_us(tmp_path: Path, name: str) -> None:
    with job_dir() as folder:
        assert run(folder, name) == run(folder, name, watched=False)


def test_an_error_that_hooks_of_the_job_pass_on_is_kept_once(tmp_path: Path) -> None:
    with job_dir() as folder:
        run(folder, "own hooks")
        [error] = kept(folder, "exception")
    assert error["type"] == "ZeroDivisionError"


@pytest.mark.parametrize(("name", "of_threads"), [("called", ["IndexError"]), ("prompt", [])])
def test_an_error_after_which_the_program_goes_on_is_not_its_end(
    tmp_path: Path, name: str, of_threads: list[str]
) -> None:
    with job_dir() as folder:
        run(folder, name)
        assert kept(folder, "exception") == []
        found = [one["type"] for told in kept(folder, "thread-errors") for one in told["errors"]]
    assert found == of_threads


def test_an_error_that_cannot_be_told_is_on_record_without_its_text(tmp_path: Path) -> None:
    with job_dir() as folder:
        run(folder, "no text")
        [error] = kept(folder, "exception")
    assert (error["type"], error["message"]) == ("__main__.Error", "")


TAKEN_EARLY = """
from faulthandler import disable, enable, is_enabled
import os, signal, threading
from os import kill
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print(is_enabled(), disable(), flush=True)
stacks = open("stacks", "w")
enable(stacks)
print(is_enabled(), flush=True)
"""


@pytest.mark.parametrize("then", ["kill(os.getpid(), signal.SIGABRT)", "print(disable())"])
def test_faulthandler_taken_before_torch_is_that_of_the_job(tmp_path: Path, then: str) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, then, script=TAKEN_EARLY + then)
        out, err = process.communicate(timeout=120)
    ends = "kill" in then
    assert out == b"False False\nTrue\n" + (b"" if ends else b"True\n")
    assert (err, process.returncode) == (b"", -6 if ends else 0)
    [stacks] = tmp_path.rglob("stacks")
    assert ("Fatal Python error: Aborted" in stacks.read_text()) == ends
