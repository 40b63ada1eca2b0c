"""``whystuck explain``: the page of a rule."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass

import click

from whystuck.cli.group import Settings, nearest
from whystuck.cli.output import terminal_width, use_color
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.evidence.errors import UsageError

_EVIDENCE_MISSING = """\
A part of the evidence is missing, and the report says which and why.

## What it means

The report was made without it. What it would have shown is unknown: a rank without evidence is
not dead, and not healthy either. Findings that depend on it are less sure.

## What to do

Read the reason that stands behind the gap. `whystuck doctor` tells whether stacks can be taken on
this machine, and `whystuck run` records from the start what cannot be had afterwards.
"""


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


@click.command()
@click.argument("code", required=False, metavar="[CODE|NAME]")
def explain(code: str | None) -> int:
    """Explain a finding, e.g. H102.

    The page tells what it means, how it is found, what else looks like it, and what to do. The
    name works as well, e.g. extra-collective; without either, all codes are listed.
    """
    pages = load_pages()
    settings = click.get_current_context().find_object(Settings) or Settings()
    if code is None:
        write_stdout(encode_for_stdout(_list(pages)))
        return 0
    page = _find(pages, code)
    if use_color(settings.color):
        write_stdout(encode_for_stdout(_render(page)))
    else:
        write_stdout(encode_for_stdout(f"{_title(page)}\n\n{page.text.strip()}\n"))
    return 0


def load_pages() -> list[Page]:
    """Return the pages of all rules, and of E901, which no rule finds."""
    from whystuck.diagnose.rules import RULES

    pages = [
        Page(
            code=rule.code,
            name=rule.name,
            severity=str(getattr(rule.severity, "value", rule.severity)),
            text=inspect.cleandoc(rule.__doc__ or ""),
        )
        for rule in RULES
    ]
    pages.append(Page("E901", "evidence-missing", "note", _EVIDENCE_MISSING))
    return sorted(pages, key=lambda page: page.code)


def _find(pages: Sequence[Page], wanted: str) -> Page:
    for page in pages:
        if wanted.lower() in (page.code.lower(), page.name.lower()):
            return page
    near = nearest(wanted, [word for page in pages for word in (page.code, page.name)])
    raise UsageError(
        f"no finding is called `{wanted}`",
        hint=f"did you mean `whystuck explain {near}`?"
        if near
        else "`whystuck explain` lists all codes",
    )


def _list(pages: Sequence[Page]) -> str:
    column = max(len(page.name) for page in pages)
    lines = [f"{page.code}  {page.name:<{column}}  {page.first_sentence}" for page in pages]
    return "\n".join(lines) + "\n"


def _title(page: Page) -> str:
    return f"# {page.code} {page.name} ({page.severity})"


def _render(page: Page) -> str:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(force_terminal=True, width=terminal_width(), highlight=False)
    with console.capture() as capture:
        console.print(Markdown(f"{_title(page)}\n\n{page.text}"))
    return capture.get()
