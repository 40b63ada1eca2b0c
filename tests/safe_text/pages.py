"""Renders Markdown, and lists what a page of HTML holds: elements, addresses and text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser

from markdown_it import MarkdownIt

_WITHOUT_TEXT = frozenset({"script", "style"})


@dataclass
class Page:
    """What a browser makes of a page."""

    elements: Counter[str] = field(default_factory=Counter)
    addresses: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    text: str = ""

    @property
    def words(self) -> str:
        """The text with each run of blanks as one."""
        return " ".join(self.text.split())


def render_page(markdown: str) -> Page:
    """Render Markdown as the most permissive renderers do: with HTML, tables and bare links."""
    renderer = MarkdownIt("commonmark", {"html": True, "linkify": True})
    renderer.enable(["table", "strikethrough", "linkify"])
    return parse_page(renderer.render(markdown))


def parse_page(text: str) -> Page:
    """Parse HTML; the text of scripts and styles is left out."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    return parser.page


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.elements[tag] += 1
        self._open.append(tag)
        for name, value in attrs:
            self.page.attributes.append(name)
            if name in {
                "href",
                "src",
                "action",
                "formaction",
                "data",
                "style",
                "srcdoc",
                "xlink:href",
            }:
                self.page.addresses.append(f"{name}={value}")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in _WITHOUT_TEXT:
            self.page.text += data

    def handle_comment(self, data: str) -> None:
        self.page.elements["!--"] += 1

    def handle_decl(self, decl: str) -> None:
        self.page.elements[f"!{decl}"] += 1
