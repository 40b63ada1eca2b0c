"""The built-in rules: a new rule is one file here, and one line in the tuple."""

from __future__ import annotations

from whystuck.diagnose.rule import Rule

RULES: tuple[type[Rule], ...] = ()
