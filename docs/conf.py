"""Settings of the documentation, and the pages that are made from the code."""

import inspect
import sys
from pathlib import Path

from sphinx.application import Sphinx

from whystuck import __version__
from whystuck.diagnose.rules import RULES

sys.path.insert(0, str(Path(__file__).parent))
import notebook

project = "whystuck"
author = "The whystuck developers"
copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx_click"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"whystuck {release}"
html_copy_source = False

FAMILIES = {
    "H": "Stuck",
    "C": "Crashed",
    "S": "Slow",
    "P": "Cost, from traces",
    "N": "Unfit",
    "V": "Numerics",
}


def render_rule(rule: type) -> str:
    """The page of one rule: what `whystuck explain CODE` prints, under a heading."""
    page = inspect.getdoc(rule) or ""
    return f"# {rule.code} {rule.name}\n\nSeverity: **{rule.severity}**\n\n{page}\n"


def render_index(rules: list[type]) -> str:
    """One table for each family of rules."""
    intro = "What whystuck can name. `whystuck explain CODE` prints the same pages."
    lines = ["# Rules", "", intro]
    for letter, family in FAMILIES.items():
        members = [rule for rule in rules if rule.code.startswith(letter)]
        if members:
            lines += ["", f"## {family}", "", "| code | name | severity |", "|---|---|---|"]
            lines += [
                f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} |"
                for rule in members
            ]
    lines += ["", "```{toctree}", ":hidden:", "", *(rule.code for rule in rules), "```", ""]
    return "\n".join(lines)


def write_rules(app: Sphinx) -> None:
    """Write the pages of the rules; a page that has not changed keeps its time stamp."""
    folder = Path(app.srcdir) / "rules"
    folder.mkdir(exist_ok=True)
    rules = sorted(RULES, key=lambda rule: rule.code)
    pages = {f"{rule.code}.md": render_rule(rule) for rule in rules}
    pages["index.md"] = render_index(rules)
    for stale in {path.name for path in folder.glob("*.md")} - set(pages):
        (folder / stale).unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def write_notebook(app: Sphinx) -> None:
    """Make a page of the notebook, as it was run."""
    page = Path(app.srcdir) / notebook.PAGE.relative_to(notebook.DOCS)
    page.parent.mkdir(exist_ok=True)
    text = notebook.render_page(notebook.read())
    if not page.exists() or page.read_text() != text:
        page.write_text(text)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_rules)
    app.connect("builder-inited", write_notebook)
