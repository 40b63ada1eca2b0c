"""A cached property that also remembers what it raised."""

from __future__ import annotations

import functools
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Type checkers know the one of the standard library, and only that, as a property.
    from functools import cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - used in place of that
        """Computes a value once; where that raises, all later uses raise the same at once.

        Many rules share one analysis, which may take seconds: it must not fail anew for each.
        """

        def __get__(self, instance: object | None, owner: type[Any] | None = None) -> object:
            """Return the value, or raise what computing it raised."""
            if instance is None:
                return self
            raised = instance.__dict__.setdefault("_raised", {})
            if self.attrname in raised:
                problem, trace = raised[self.attrname]
                raise problem.with_traceback(trace)
            try:
                return super().__get__(instance, owner)
            except Exception as problem:
                # The frames hold tables of all ranks; only their places are needed from here on.
                traceback.clear_frames(problem.__traceback__)
                raised[self.attrname] = problem, problem.__traceback__
                raise


__all__ = ["cached_property"]
