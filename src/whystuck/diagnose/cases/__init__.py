"""What logs say went wrong: one module makes the cases of one class, and the story ranks them."""

from __future__ import annotations

from whystuck.diagnose.story import Maker

MAKERS: tuple[Maker, ...] = ()
