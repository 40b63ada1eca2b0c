"""Many small checks as one test, which names those that fail.

For a check that takes less than the millisecond or ten that pytest needs for a test of its own.
What takes longer is parametrized: the quick tier runs a sample of that, and processes share it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

Check = Callable[..., None]


def each(
    argument: str, cases: Iterable[object], name: Callable[[Any], str] = repr
) -> Callable[[Check], Check]:
    """Call a test with each case as one of its arguments; the others are fixtures."""
    known = list(cases)

    def decorate(check: Check) -> Check:
        @wraps(check)
        def check_all(**fixtures: object) -> None:
            failed = []
            for case in known:
                try:
                    check(**fixtures, **{argument: case})
                except Exception as error:  # noqa: BLE001 - one case must not hide the next
                    error.add_note(f"case: {name(case)}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(known)} cases", failed)

        given = inspect.signature(check)
        left = [one for one in given.parameters.values() if one.name != argument]
        check_all.__signature__ = given.replace(parameters=left)  # type: ignore[attr-defined]
        return check_all

    return decorate
