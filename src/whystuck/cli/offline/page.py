"""A page that ``whystuck explain`` prints."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """What is written about one code; ``text`` is Markdown without the title."""

    code: str
    name: str
    severity: str
    text: str

    @property
    def first_sentence(self) -> str:
        """The line for the list of all codes."""
        paragraph = " ".join(self.text.split("\n\n", 1)[0].split())
        return re.split(r"(?<=[.!?]) ", paragraph, maxsplit=1)[0]
