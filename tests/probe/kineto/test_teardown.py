"""CUPTI leaves after a trace on demand, where it can come back, and where the job does not say."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.launch.running import clean_environment

SCRIPT = """
import ctypes, json, os, sys
import torch
from whystuck.probe.kineto.library import Library, find_library
from whystuck.probe.kineto.teardown import Teardown
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
torch.version.cuda = json.loads(sys.argv[1])
library, teardown, seen = Library(find_library(torch.__file__)), Teardown(), []
for is_tracing in (False, True, True, False):
    teardown.follow(library, is_tracing=is_tracing)
    seen.append((getenv(b"TEARDOWN_CUPTI") or b"").decode())
teardown.follow(library, is_tracing=True)
os.environ["TEARDOWN_CUPTI"] = "own"
teardown.follow(library, is_tracing=False)
seen.append((getenv(b"TEARDOWN_CUPTI") or b"").decode())
print(json.dumps(seen))
"""


@pytest.mark.parametrize(
    ("version", "own", "seen"),
    [
        ("12.6", {}, ["", "1", "1", "", "own"]),
        pytest.param("13.0", {}, ["", "1", "1", "", "own"], marks=pytest.mark.slow),
        ("12.4", {}, ["", "", "", "", "own"]),
        pytest.param(None, {}, ["", "", "", "", "own"], marks=pytest.mark.slow),
        ("13.0", {"TEARDOWN_CUPTI": "0"}, ["0", "0", "0", "0", "own"]),
    ],
)
def test_variable_is_there_for_the_time_of_a_trace(
    version: str | None, own: dict[str, str], seen: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(version)],
        env=clean_environment(**own), capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == seen
