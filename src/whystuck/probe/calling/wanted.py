"""Looking into ops, and the one thing of ours that goes up into the job: an error it asked for."""

from __future__ import annotations

from .interrupts import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..oplog.log import OpLog


class Wanted(BaseException):
    """Passes by whatever keeps our own errors out of the job; the job gets a RuntimeError."""

    def as_error(self) -> RuntimeError:
        """Return what the job is to see."""
        return RuntimeError(str(self))


def look(log: OpLog, method: str, *args: Any) -> Any:
    """Call a method of the inspector; nothing but what the user asked for is raised."""
    try:
        return getattr(log.inspector, method)(*args)
    except Wanted as wanted:
        raise wanted.as_error() from wanted.__cause__
    except Exception as error:  # the op goes on without a look into it
        let_through(error)
        return None
