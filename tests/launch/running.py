"""Running whystuck as a user does, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.backends import adapt_file

WHYSTUCK = [sys.executable, "-m", "whystuck"]
# For so long a test waits for a job, which takes minutes where much else runs, before it fails.
# Such a test is marked with `LONG`: the limit of all others is less.
PATIENCE_S = 1200.0
LONG = pytest.mark.timeout(2 * PATIENCE_S)
# The end of a script whose last act is a collective of gloo, which does not take the interpreter
# down: a thread of torch's that comes back only then, because it has to let go of a tensor, aborts
# the process (torch 2.13, without whystuck too). What is registered for the exit is called.
LEAVE = """
import atexit, posix, sys
atexit._run_exitfuncs()
sys.stdout.flush()
posix._exit(0)
"""
END = f"""
dist.destroy_process_group()
{LEAVE}
"""
# For a script that does end by the interpreter's own way out: it reduces a tensor that only torch
# holds then, which is there until that thread has let go of it, or for as long as a probe holds it
# that a test has broken.
REDUCE = """
def reduce(make):
    import time, weakref
    value = make()
    dist.all_reduce(value)
    held, value = weakref.ref(value), None
    until_s = time.monotonic() + 2
    while held() is not None and time.monotonic() < until_s:
        time.sleep(0.001)
"""

# For a script that compiles nothing, behind its `import torch`: optimizers import the compiler for
# calls that do nothing then, and that takes nearly as long as torch itself.
NO_COMPILER = (
    "Lazy = __import__('types').SimpleNamespace; "
    "torch._dynamo = __import__('sys').modules['torch._dynamo'] = Lazy("
    "disable=lambda function, *_, **__: function, graph_break=lambda: None, "
    "trace_rules=Lazy(clear_lru_cache=lambda: None), "
    "utils=Lazy(get_optimize_ddp_mode=lambda: 'ddp_optimizer'))"
)
ROOT = Path(__file__).parents[2]
_IMPORTS_TORCH = re.compile(r"^import (?:[\w., ]*, )?torch(?:, [\w., ]*)?(?=;|$)", re.MULTILINE)
# What takes something of the compiler where nothing is compiled, too.
_NEEDS_COMPILER = re.compile(
    r"\.compile\(|_dynamo|FSDP|FullyShardedDataParallel|fully_shard|checkpoint|DTensor"
    r"|distribute_tensor|device_mesh|pipelining|torch\.export|NestedTensor"
)


def without_compiler(script: str, then: str = "") -> str:
    """Keep the compiler out of a script that only has an optimizer; its lines keep their numbers.

    ``then`` is what the script runs besides.
    """
    if ".optim." not in script + then or _NEEDS_COMPILER.search(script + then):
        return script
    return _IMPORTS_TORCH.sub(lambda found: f"{found[0]}; {NO_COMPILER}", script, count=1)


def clean_environment(**extra: str) -> dict[str, str]:
    """Return our environment without what a launcher, whystuck or a user may have set.

    Without a buffer, Python writes the text and the end of a line one after the other, and the
    lines of two ranks mix.
    """
    launcher = ("WHYSTUCK_", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    dropped = (*launcher, "PYTHONPATH", "PYTHONUNBUFFERED")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    scripts = str(Path(sys.executable).parent)
    kept["PATH"] = f"{scripts}{os.pathsep}{kept.get('PATH', '')}"
    return kept | {"OMP_NUM_THREADS": "1"} | extra


def run_whystuck(
    *arguments: str | Path,
    cwd: Path,
    timeout_s: float = PATIENCE_S,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run whystuck to its end and return what it wrote."""
    return subprocess.run(
        [*WHYSTUCK, *map(str, arguments)],
        cwd=cwd,
        env=clean_environment(**(environment or {})),
        capture_output=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def torchrun(ranks: int, script: Path, *arguments: str, is_traced: bool = False) -> list[str]:
    """Return the command line of a job on one node, on a port of its own.

    The script gets the backend of the test, and no compiler that it does not need; a job that
    ``is_traced`` keeps it, as torch may crash at its end without.
    """
    adapt_file(script)
    if not is_traced and script.is_file() and ROOT not in script.resolve().parents:
        before = script.read_text()
        if (after := without_compiler(before)) != before:
            script.write_text(after)
    command = ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
    return [*command, str(script), *arguments]
