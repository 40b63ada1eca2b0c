"""The marks of tests, who runs which, and the signals and mounts they begin with."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.backends import GLOO, Backend, using
from tests.nccl_like.building import Like, NotBuiltError, build
from tests.own_mounts import hide_mounts
from tests.schedule import ByFile
from tests.tiers import (
    MOST_EXAMPLES,
    QUICK_EXAMPLES,
    Marks,
    choose_quick,
    has_many_examples,
    limit_examples,
)

# Whoever starts the tests in the background, or under nohup, has them ignore signals that they send
# to jobs of theirs, which would ignore them, too.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        is_interrupt = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)

hide_mounts()

# A thousand modules and many thousand tests are made, all of them kept: nothing to collect there.
gc.disable()

# Properties are checked with the same examples in every run, however slow the machine is.
settings.register_profile("whystuck", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("whystuck")


@pytest.fixture(scope="session")
def like(request: pytest.FixtureRequest) -> Like:
    """Return the libraries that stand in for NCCL and CUDA."""
    cache = request.config.cache
    if cache is None:
        pytest.skip("pytest runs without its cache")
    try:
        return build(cache.mkdir("nccl_like"))
    except NotBuiltError as error:
        pytest.skip(f"the backend that is like NCCL is not built: {error}")


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Let the jobs of a test run on a backend; see `tests/backends.py`."""
    name = getattr(request, "param", "gloo")
    with using(GLOO if name == "gloo" else Backend(request.getfixturevalue("like"))) as made:
        yield made


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the quick tier."""
    group = parser.getgroup("tiers")
    group.addoption(
        "--quick", action="store_true", help="start no process and sample what has many cases"
    )
    group.addoption("--quick-seed", type=int, default=0, metavar="N", help="which sample")
    group.addoption(
        "--all-examples", action="store_true", help="check properties with all their examples"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by what they do, and choose those of the quick tier."""
    is_quick = config.getoption("quick")
    marks = Marks()
    for item in items:
        for name in sorted(marks.of(item)):
            item.add_marker(name)
        if has_many_examples(item):
            item.add_marker("many_examples")
    if not config.getoption("all_examples"):
        limit_examples(items, QUICK_EXAMPLES if is_quick else MOST_EXAMPLES)
    if is_quick:
        chosen = choose_quick(items, config.getoption("quick_seed"))
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]


def pytest_collection_finish() -> None:
    """Collect what the tests leave behind, but never look at them again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    """Let one process run the tests of a file; xdist 3.8 loses its groups with pytest 9.2."""
    return ByFile(config, log) if config.getoption("dist") == "loadgroup" else None
