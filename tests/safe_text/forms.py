"""Reads the lists of forms, and makes up the secrets in them."""

from __future__ import annotations

import random
import re
import string
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_PLACE = re.compile(r"\{\{(?:=(.*?)|([ahbud])(\d+)|)\}\}")
_LETTERS = {
    "a": string.ascii_letters + string.digits,
    "h": "0123456789abcdef",
    "b": string.ascii_letters + string.digits + "+/",
    "u": string.ascii_uppercase + string.digits,
    "d": string.digits,
}
_RUN = 5


@dataclass(frozen=True)
class Form:
    """A text with secrets in it."""

    text: str
    secrets: tuple[str, ...]

    def shown_in(self, text: str, letters: int = _RUN) -> str:
        """Return a run of letters of a secret that a text shows; empty when there is none."""
        text = text.replace("<secret>", "")
        for secret in self.secrets:
            run = min(letters, len(secret))
            for start in range(len(secret) - run + 1):
                if secret[start : start + run] in text:
                    return secret[start : start + run]
        return ""


def read_forms(name: str) -> list[Form]:
    """Read a list of forms, the same made-up secrets in each run."""
    chance = random.Random(name)
    return [_fill(line, chance) for line in read_lines(name)]


def read_lines(name: str) -> list[str]:
    """Read a list of texts, one a line."""
    lines = (_HERE / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


def _fill(line: str, chance: random.Random) -> Form:
    secrets: list[str] = []

    def fill(match: re.Match[str]) -> str:
        given, kind, length = match.groups()
        if given is None and kind is None:
            return ""
        made = given or _make(kind, int(length), chance)
        secrets.append(made)
        return made

    text = _PLACE.sub(fill, line)
    return Form(text, tuple(secrets))


def _make(kind: str, length: int, chance: random.Random) -> str:
    made = "".join(chance.choices(_LETTERS[kind], k=length - 1))
    # A digit and a letter are in each, as in all but a few real ones.
    return made + ("7" if not any(map(str.isdigit, made)) else "f" if kind == "h" else made[-1])
