"""The one thing of ours that goes up into the job: an error that the user asked for."""

from __future__ import annotations


class Wanted(BaseException):
    """Passes by whatever keeps our own errors out of the job; the job gets a RuntimeError."""

    def as_error(self) -> RuntimeError:
        """Return what the job is to see."""
        return RuntimeError(str(self))
