"""What logs are searched for, made ready for it."""

from __future__ import annotations

import threading

from whystuck.parse.logs.blocks.calls.ras import RAS_MARKS
from whystuck.parse.logs.blocks.machines.boot_lines import BOOT_MARKS
from whystuck.parse.logs.blocks.stacks.fatals import FATAL_MARKS
from whystuck.parse.logs.blocks.stacks.stacks import STACK_MARKS
from whystuck.parse.logs.blocks.tables.tables import TABLE_MARKS
from whystuck.parse.logs.clusters import CLUSTER_MARKS
from whystuck.parse.logs.exits import EXIT_MARKS
from whystuck.parse.logs.facts import FACT_MARKS
from whystuck.parse.logs.search.engines import Engine
from whystuck.parse.logs.search.scan import LogPatterns
from whystuck.parse.logs.signatures import Signature, load_signatures

TRACE_MARKS = (b"Traceback (most recent", b"terminated with the following error")
MARKS = (
    *TRACE_MARKS,
    *FATAL_MARKS,
    *RAS_MARKS,
    *BOOT_MARKS,
    *EXIT_MARKS,
    *FACT_MARKS,
    *CLUSTER_MARKS,
    *STACK_MARKS,
    *TABLE_MARKS,
)


class LogTables:
    """The signatures, made ready to be searched for; one object serves many logs."""

    def __init__(self, signatures: tuple[Signature, ...] = (), engine: Engine = "auto") -> None:
        """Compile the patterns.

        Args:
            signatures: What to look for; ours when left out.
            engine: What to look with.
        """
        self.signatures = signatures or load_signatures()
        self.patterns = LogPatterns(self.signatures, engine, MARKS)


_known = threading.local()


def load_tables() -> LogTables:
    """Return the tables of our signatures; each thread compiles them once, for its own logs."""
    tables: LogTables | None = getattr(_known, "tables", None)
    if tables is None:
        tables = _known.tables = LogTables()
    return tables
