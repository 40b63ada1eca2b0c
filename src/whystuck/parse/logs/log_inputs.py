"""One log, as it is given to what joins the logs of a job."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.parse.logs.owners.names import LogName
from whystuck.parse.logs.parts import LogPart


@dataclass(frozen=True, slots=True)
class LogInput:
    """One log, and what was found in it.

    Attributes:
        artifact: The path to cite.
        part: What was found.
        name: What its path tells.
        rank: The rank whose output it surely is.
        node: The host it surely is of.
        modified_ns: When it was last written.
    """

    artifact: str
    part: LogPart
    name: LogName
    rank: int | None = None
    node: str = ""
    modified_ns: int = 0
