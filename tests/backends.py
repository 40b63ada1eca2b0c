"""The backends of jobs in tests: gloo, and the one that is like NCCL.

A test that is marked by `on_both` runs on each. What starts its jobs, `start_rank` and `torchrun`,
writes the backend into their scripts in place of gloo, on the same line. On the backend that is
like NCCL, tensors are on its device unless the script says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.nccl_like.building import Like

Test = TypeVar("Test", bound=Callable[..., object])
NAMES = ("gloo", "nccl_like")
HEAD = Path(__file__).parent / "nccl_like" / "head.py"
_GLOO = 'dist.init_process_group("gloo"'
# Of both devices, as the dummy tensor of a barrier is on the host where the backend is not NCCL.
_LIKE = 'dist.init_process_group("cpu:nccl_like,privateuseone:nccl_like"'


@dataclass(frozen=True)
class Backend:
    """What a job runs on; ``like`` are the libraries of the one that is like NCCL."""

    like: Like | None = None

    @property
    def is_gloo(self) -> bool:
        """Whether ops are on the host, and tell when they are over."""
        return self.like is None

    def adapt(self, script: str) -> str:
        """Write the backend into a script; its lines keep their numbers."""
        if self.like is None:
            return script
        assert _GLOO in script, "a script without a group"
        begin = f"{load(self.like)}; __import__('torch').set_default_device('privateuseone'); "
        return script.replace(_GLOO, begin + _LIKE)


def load(like: Like) -> str:
    """Return the statement of a job that loads the backend, as the module `nccl_like`."""
    return f"__import__('runpy').run_path({str(HEAD)!r}, {{'LIKE': {str(like.backend)!r}}})"


GLOO = Backend()
_current = GLOO


def adapt(script: str) -> str:
    """Write the backend of the test that runs into a script."""
    return _current.adapt(script)


def adapt_file(script: Path) -> None:
    """Write the backend of the test that runs into a file, which is one of the test."""
    if not _current.is_gloo:
        script.write_text(adapt(script.read_text()))


@contextmanager
def using(backend: Backend) -> Iterator[Backend]:
    """Let jobs that are started meanwhile run on a backend."""
    global _current  # noqa: PLW0603 - a fixture cannot reach all that starts jobs
    before, _current = _current, backend
    try:
        yield backend
    finally:
        _current = before


def on_both(test: Test) -> Test:
    """Run a test on gloo and on the backend that is like NCCL."""
    return _run_on(NAMES, test)


def on_both_slowly(test: Test) -> Test:
    """Do the same, where the time of `make test` has no room for both."""
    return _run_on((NAMES[0], pytest.param(NAMES[1], marks=pytest.mark.slow)), test)


def _run_on(names: tuple[object, ...], test: Test) -> Test:
    marked: Test = pytest.mark.usefixtures("backend")(test)
    both: Test = pytest.mark.parametrize("backend", names, indirect=True)(marked)
    return both
