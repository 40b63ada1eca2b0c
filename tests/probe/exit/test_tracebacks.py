"""What an error prints: the same as without the probe, whose functions it went through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.probe.job import PROBE_DIR, job_dir, start_rank

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
layer = torch.nn.Linear(4, 4)

def train():
    try:
        layer(torch.ones(3, 3))
    except RuntimeError as error:
        try:
            torch.ones(2).backward()
        except RuntimeError:
            raise ValueError("no luck") from error

try:
    train()
finally:
    CALL
"""

CALLS = {
    "an op": "dist.all_reduce(torch.ones(2).to_sparse())",
    "no signal": "os.kill(os.getpid(), 999)",
    "no signal that could be raised": "__import__('signal').raise_signal(999)",
    "the faulthandler": "print(__import__('faulthandler').is_enabled(), file=sys.stderr)",
}

IMPORT = "import torch\n"


def errors_of(tmp_path: Path, script: str, extra: Mapping[str, str], *, watched: bool) -> str:
    """Run a rank with the probe or without it; return what it printed as errors."""
    with job_dir() as folder:
        (folder / "switch.json").write_text('{"generation": 1, "comm": "on", "marks": "on"}')
        quiet = {} if watched else {"WHYSTUCK_DISABLE": "1"}
        process = start_rank(tmp_path, folder, extra={**extra, **quiet}, script=script)
        try:
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == 1
    return err.decode()


@pytest.mark.parametrize("name", CALLS)
def test_an_error_prints_what_it_does_without_us(tmp_path: Path, name: str) -> None:
    """Also the errors that it came from."""
    script = SCRIPT.replace("CALL", CALLS[name])
    bare, watched = (errors_of(tmp_path, script, {}, watched=one) for one in (False, True))
    assert "ValueError: no luck" in bare
    # A module is called by another line of torch while its calls are marked.
    assert _without_calls(watched) == _without_calls(bare)


def _without_calls(text: str) -> list[str]:
    lines = text.splitlines()
    at = [place for place, line in enumerate(lines) if "in _wrapped_call_impl" in line]
    return [
        line
        for place, line in enumerate(lines)
        if place - 2 not in at and place not in at and place - 1 not in at
    ]


def test_an_import_that_fails_prints_what_it_does_without_us(tmp_path: Path) -> None:
    """Python leaves out its own functions, and would print them around one of ours."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise OSError('libcudart.so: not found')\n")
    path = {"PYTHONPATH": f"{PROBE_DIR / 'site'}:{tmp_path}"}
    bare, watched = (errors_of(tmp_path, IMPORT, path, watched=one) for one in (False, True))
    assert watched == bare
