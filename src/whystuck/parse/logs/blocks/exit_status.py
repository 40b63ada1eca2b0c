"""With which status a program ended, as people ask their shell below what it printed, or write."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

STATUS_MARKS = (
    b"echo $?", b'echo "', b"${?}", b": $?",
    b"echo rc", b"echo exit", b"echo status", b"echo code", b"echo ret",
    b"xit code", b"xit status", b"xit_status", b"xit_code", b"xitCode", b"xited with", b"xited (",
    b"eturn code", b"eturned code", b"exit=", b"exit: ",
)  # fmt: skip
# Behind a prompt, and nothing before it on its line: else it is the status of that.
_ASKED = re.compile(
    r"^(?:[^$#%>]{0,80}[$#%>] ?|> ?)?echo \"?(?:\w{1,12}[ =:]{1,3}){0,2}\$\{?\?\}?\"?\s*$"
)
# `train.py finished OK, exit status 0`; of Slurm, `ExitCode=0:0` has a signal behind the colon.
_SAID = re.compile(
    r"\b(?:[Ee]xit(?:ed)?(?: with)?[ _]?(?:[Cc]ode|[Ss]tatus)|[Ee]xited(?: with)?|[Rr]eturn(?:ed)?"
    r"[ _]?code)\s?[ :=(]{1,3}(?P<status>-?\d{1,3})(?::0)?(?![\w:-]|\.\d)"
)
# Alone on its line, as scripts print it.
_ALONE = re.compile(
    r"^(?:exit(?:[ _]?(?:code|status))?|rc|ret|status)(?:=|: ?)(?P<status>\d{1,3})\s*$"
)
_TOLD = re.compile(r"^(?:\w{1,12}[ =:]{1,3}){0,2}(\d{1,3})\s*$")


class StatusReader:
    """Takes the line below the question, and what is said of a status."""

    def __init__(self) -> None:
        self._is_asked = False

    @property
    def is_open(self) -> bool:
        """Whether the next line may be the status."""
        return self._is_asked

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the status that it is."""
        is_asked, self._is_asked = self._is_asked, is_mark and bool(_ASKED.match(line.text))
        if is_asked and (match := _TOLD.match(line.text)):
            yield TabledSeen("shell.status", row, line, {"status": match[1]})
        elif is_mark and (said := _SAID.search(line.text) or _ALONE.match(line.text)):
            yield TabledSeen("job.status", row, line, {"status": said["status"]})
