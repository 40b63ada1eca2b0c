"""Decorators as frameworks put them around user hooks: they deepen the stack, no more."""

import functools
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def timed(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def measure(*args: P.args, **kwargs: P.kwargs) -> R:
        begin = time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            measure.__dict__["seconds"] = time.monotonic() - begin

    return measure


def counted(function: Callable[P, R]) -> Callable[P, R]:
    calls = 0

    @functools.wraps(function)
    def count(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal calls
        calls += 1
        return function(*args, **kwargs)

    return count


def wrap(function: Callable[P, R], depth: int) -> Callable[P, R]:
    for layer in (timed, counted, timed)[:depth]:
        function = layer(function)
    return function
