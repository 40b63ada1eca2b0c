"""N426 memory-low."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class MemoryLow(CheckRule):
    """Little memory is available, or processes wait for it.

    ## What it means

    The kernel will soon end processes, or spends its time with reclaiming memory.

    ## How it is found

    What is available (`MemAvailable`), and the pressure on memory over ten seconds.

    ## False alarms

    A job that runs on this node already.

    ## What to do

    End what is left over.
    """

    code = "N426"
    name = "memory-low"
    remedies: ClassVar[tuple[str, ...]] = ("`ps aux --sort -rss | head` shows who has it",)
