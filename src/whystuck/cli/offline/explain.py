"""``whystuck explain``: the page of a rule, or of a known log line."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from whystuck.cli.group import Settings, nearest
from whystuck.cli.offline.page import Page
from whystuck.cli.offline.signature_options import signatures_option
from whystuck.cli.output import terminal_width, use_color
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.evidence.errors import UsageError

if TYPE_CHECKING:
    from whystuck.parse.logs.signatures import Signature

_EVIDENCE_MISSING = """\
A part of the evidence is missing, and the report says which and why.

## What it means

The report was made without it. What it would have shown is unknown: a rank without evidence is
not dead, and not healthy either. Findings that depend on it are less sure.

## What to do

Read the reason that stands behind the gap. `whystuck doctor` tells whether stacks can be taken on
this machine, and `whystuck run` records from the start what cannot be had afterwards.
"""

_RULE_FAILED = """\
A rule of whystuck, or another part of a report, raised an exception.

## What it means

This is a bug of whystuck, not of your job. The rules that the note lists were not judged, so what
they would have found is unknown. All else in the report stands. A job is never called healthy
beside this note: the verdict is inconclusive where nothing else was found. A finding that a failed
rule might have explained away is only possible.

## What to do

Report it with the text of the note: it has the exception, and the place in whystuck where it was
raised. The evidence itself is not needed. Until it is mended, read the stacks and the evidence of
the report yourself.
"""


@click.command()
@click.argument("words", nargs=-1, metavar="[CODE|NAME|ID|signatures]")
@signatures_option
def explain(words: tuple[str, ...], signatures: tuple[Signature, ...]) -> int:
    """Explain a finding, e.g. H102, or a line in a log, e.g. xid.79.

    The page tells what it means, how it is found, what else looks like it, and what to do. The
    name of a finding works as well, e.g. extra-collective, and so does the number of an Xid, e.g.
    xid 31. Without any, all codes of findings are listed; `signatures` lists all known log lines,
    with `--signatures` those of your own table too.
    """
    settings = click.get_current_context().find_object(Settings) or Settings()
    if not words:
        write_stdout(encode_for_stdout(_list(load_pages())))
        return 0
    from whystuck.cli.offline.explain_signature import LIST, list_log_pages

    wanted = " ".join(words)
    if wanted == LIST:
        write_stdout(encode_for_stdout(list_log_pages(signatures)))
        return 0
    page = _find(load_pages(), wanted, signatures)
    if use_color(settings.color):
        write_stdout(encode_for_stdout(_render(page)))
    else:
        write_stdout(encode_for_stdout(f"{_title(page)}\n\n{page.text.strip()}\n"))
    return 0


def load_pages() -> list[Page]:
    """Return the pages of all rules, and of E901 and E902, which no rule finds."""
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
    pages.append(Page("E902", "rule-failed", "note", _RULE_FAILED))
    return sorted(pages, key=lambda page: page.code)


def _find(pages: Sequence[Page], wanted: str, signatures: Sequence[Signature]) -> Page:
    from whystuck.cli.offline.explain_signature import find_log_page, log_words

    for page in pages:
        if wanted.lower() in (page.code.lower(), page.name.lower()):
            return page
    if found := find_log_page(wanted, signatures):
        return found
    known = [word for page in pages for word in (page.code, page.name)]
    near = nearest(wanted, known + log_words(signatures))
    raise UsageError(
        f"no finding is called `{wanted}`",
        hint=f"did you mean `whystuck explain {near}`?"
        if near
        else "`whystuck explain` lists all codes, `whystuck explain signatures` all log lines",
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
