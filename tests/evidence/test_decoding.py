"""Types of msgspec are built by one thread at a time, and nowhere else than in one module."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import whystuck

# Each round has types that nobody has used; the switch of threads is as quick as it gets, so that
# both are in the same type. Without the lock, the first round or one soon after ends in SIGSEGV.
FIRST_USES = """
import sys, threading
import msgspec
from whystuck.evidence.decoding import convert, decode_json
sys.setswitchinterval(1e-6)
WAIT_S = 60
DATA = [{"code": "a", "inner": [{"a": 1}], "more": {"x": {"a": 2}}}]

def use_at_once():
    class Inner(msgspec.Struct, frozen=True):
        a: int
        b: str = ""
        c: tuple[str, ...] = ()
        d: dict[str, list[int]] = {}

    class Outer(msgspec.Struct, frozen=True):
        code: str
        inner: list[Inner]
        more: dict[str, Inner] = {}
        number: int | None = None

    Inner.__module__ = Outer.__module__ = "__main__"
    start, found = threading.Barrier(4), []

    def work(use):
        start.wait()
        found.append(use())

    uses = [
        lambda: convert(DATA, list[Outer]),
        lambda: decode_json(msgspec.json.encode(DATA), list[Outer]),
        lambda: [convert({"code": "a", "inner": [{"a": 1}], "more": {"x": {"a": 2}}}, Outer)],
        lambda: [Outer("a", [convert({"a": 1}, Inner)], {"x": Inner(2)})],
    ]
    threads = [threading.Thread(target=work, args=[use], daemon=True) for use in uses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(found) == 4, "a thread spins, or has raised"
    assert all(one == found[0] for one in found), found

for _ in range(300):
    use_at_once()
"""
FORK = """
import os, sys, threading
from whystuck.evidence import decoding
held, go = threading.Event(), threading.Event()
def build():
    with decoding._building:
        held.set()
        go.wait()
thread = threading.Thread(target=build)
thread.start()
held.wait()
threading.Timer(0.2, go.set).start()
if (pid := os.fork()) == 0:  # not before the other thread has done
    os._exit(decoding.decode_json(b"[1]", list[int])[0] + 6 if go.is_set() else 1)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
DIRECT = re.compile(
    r"msgspec\.(?:convert|(?:json|msgpack|toml|yaml)\.(?:Decoder\(|decode\([^()]*(?:\([^()]*\)"
    r"[^()]*)*\btype=))"
)


def _run(lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, check=False, text=True, timeout=240
    )


def test_first_uses_of_a_type_in_several_threads_are_sound() -> None:
    done = _run(FIRST_USES)
    assert done.returncode == 0, done.stderr


def test_process_that_is_forked_meanwhile_can_decode() -> None:
    done = _run(FORK)
    assert done.returncode == 7, done.stderr


def test_nothing_else_lets_msgspec_build_a_type() -> None:
    root = Path(whystuck.__file__).parent
    direct = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if DIRECT.search(path.read_text())
    ]
    assert direct == ["evidence/decoding.py"]
