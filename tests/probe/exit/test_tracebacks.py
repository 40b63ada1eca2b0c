"""What an error prints: the same as without the probe, whose functions it went through."""

from __future__ import annotations

import sys
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


@pytest.mark.parametrize(
    "name",
    [
        # Those calls fail in the test below, too.
        pytest.param(name, marks=[pytest.mark.slow] if name.startswith("no signal") else [])
        for name in CALLS
    ],
)
def test_an_error_prints_what_it_does_without_us(tmp_path: Path, name: str) -> None:
    """Also the errors that it came from."""
    script = SCRIPT.replace("CALL", CALLS[name])
    bare, watched = (errors_of(tmp_path, script, {}, watched=one) for one in (False, True))
    assert "ValueError: no luck" in bare
    assert watched == bare


TELLS_ITSELF = """
import logging, os, signal, sys, traceback, warnings
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader, IterableDataset
dist.init_process_group("gloo")
warnings.simplefilter("always")

class Data(IterableDataset):
    def __len__(self):
        return 1
    def __iter__(self):
        for number in range(3):
            warnings.warn("of the data", stacklevel=4)
            yield torch.ones(2)
        raise KeyError("a record")

class Model(torch.nn.Module):
    def forward(self, value):
        # Level 3 is the line of torch by which modules are called.
        for level in (1, 2, 4, 5):
            warnings.warn(f"level {level}", stacklevel=level)
            logging.warning("logged", stack_info=False, stacklevel=level)
        return value
    def __getstate__(self):
        for level in range(1, 8):
            warnings.warn(f"saved, {level}", stacklevel=level)
        raise ZeroDivisionError

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value ** 2
    @staticmethod
    def backward(ctx, grad):
        for level in range(1, 6):
            warnings.warn(f"backward {level}", stacklevel=level)
        raise ArithmeticError("of a backward")

def create(*args):
    for level in range(1, 7):
        warnings.warn(f"group {level}", stacklevel=level)
    raise PermissionError("no such group")

dist.Backend.register_backend("own", create, devices=["cpu"])

def attempt(name, call, *args):
    try:
        call(*args)
    except BaseException:
        print(name, file=sys.stderr)
        traceback.print_exc()

def read():
    for batch in DataLoader(Data(), batch_size=None):
        pass

model, one = Model(), torch.ones(1, requires_grad=True)
logging.basicConfig(format="%(lineno)d %(funcName)s %(message)s")
for turn in range(2):
    attempt("data", read)
    attempt("forward", model, one)
    attempt("forward without its argument", model)
    attempt("save", torch.save, model, "model.pt")
    attempt("dcp", dcp.save, {}, None)
    attempt("backward", Square.apply(one).backward)
    attempt("grad", torch.autograd.grad, one, one)
    attempt("range", torch.cuda.nvtx.range_push, "name")
    attempt("record", torch.profiler.record_function("x").__exit__, None, None, None)
    attempt("an op", dist.all_reduce, torch.ones(2).to_sparse())
    attempt("send", dist.group.WORLD.send, [torch.ones(2)] * 2, 0, 0)
    attempt("group", dist.new_group, [0], None, "own")
    attempt("kill", os.kill, os.getpid(), 999)
    attempt("raise", signal.raise_signal, 999)
    attempt("quit", quit, 5)
    attempt("exit", sys.exit, 4)
    optimizer = torch.optim.SGD([one], lr=0.1)
    optimizer.step()
sys.exit(1)
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="functions of ours stay in tracebacks")
def test_what_the_job_tells_of_errors_and_warnings_is_as_without_us(tmp_path: Path) -> None:
    bare, watched = (errors_of(tmp_path, TELLS_ITSELF, {}, watched=one) for one in (False, True))
    for text in ("level 5", "KeyError: 'a record'", "group 6", "ArithmeticError", "SystemExit: 4"):
        assert text in bare
    assert "whystuck" not in watched
    assert watched == bare


def test_an_import_that_fails_prints_what_it_does_without_us(tmp_path: Path) -> None:
    """Python leaves out its own functions, and would print them around one of ours."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise OSError('libcudart.so: not found')\n")
    path = {"PYTHONPATH": f"{PROBE_DIR / 'site'}:{tmp_path}"}
    bare, watched = (errors_of(tmp_path, IMPORT, path, watched=one) for one in (False, True))
    assert watched == bare
