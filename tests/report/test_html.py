from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser

import msgspec
import pytest
from tests.report import samples

from whystuck.evidence.finding import Coverage, Gap, Report
from whystuck.evidence.sections import (
    Communication,
    CommunicationRow,
    ExecutedPath,
    ExecutedRun,
    Site,
    StackNode,
)
from whystuck.report.html import render_html
from whystuck.report.json import render_json


class Page(HTMLParser):
    """What a browser would make of a page: elements, text, and the text of style and script."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.words: list[str] = []
        self._open = ""
        self.feed(render_html(report))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag if tag in self.raw else ""

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        (self.raw[self._open] if self._open else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("name", samples.ALL)
def test_page_holds_no_script_no_handler_and_no_address(name: str) -> None:
    page = Page(samples.ALL[name]())

    assert page.attributes("script") == [{"type": "application/json", "id": "report"}]
    assert not {"img", "iframe", "link", "a", "object", "form"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not any(
            key.startswith("on") or key in {"src", "href", "style"} for key in attributes
        )


@pytest.mark.parametrize("name", samples.ALL)
def test_embedded_json_is_the_json_report(name: str) -> None:
    report = samples.ALL[name]()

    (embedded,) = Page(report).raw["script"]

    assert json.loads(embedded) == json.loads(render_json(report))
    assert "<" not in embedded


def test_policy_allows_our_style_sheet_and_nothing_else() -> None:
    page = Page(samples.stuck())
    (style,) = page.raw["style"]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()

    policy = next(
        attributes["content"]
        for attributes in page.attributes("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )

    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert "url(" not in style
    assert "@import" not in style


def test_hostile_text_is_shown_and_not_acted_on() -> None:
    page = Page(samples.hostile())

    assert r"</script><script>alert(1)</script>\x1b[31m\u202e\x9b2J\nnext" in page.text
    assert not any(tag in {"img", "svg"} for tag, _ in page.elements)


def test_ranks_are_shown_by_what_is_known_of_them() -> None:
    page = Page(
        msgspec.structs.replace(
            samples.stuck(), coverage=Coverage(6, 4), gaps=[Gap(4, "flight recorder dump", "gone")]
        )
    )

    cells = [
        (item.get("class"), item["title"]) for item in page.attributes("li") if "title" in item
    ]

    assert cells[:6] == [
        ("culprit", "rank 0: named as the cause"),
        ("victim", "rank 1: suffers from it"),
        ("victim", "rank 2: suffers from it"),
        ("victim", "rank 3: suffers from it"),
        ("gap", "rank 4: no flight recorder dump"),
        ("gap", "rank 5: nothing read"),
    ]


def test_block_shared_by_culprit_and_victims_blames_nobody() -> None:
    classes = [item["class"] for item in Page(samples.stuck()).attributes("details")]

    assert classes == ["block other", "block culprit", "block victim"]


def test_long_run_of_library_frames_is_folded() -> None:
    chain: list[StackNode] = []
    for line in range(6):
        chain = [StackNode("inner", samples.C10D, line, "0", is_user_code=False, children=chain)]

    page = Page(msgspec.structs.replace(samples.stuck(), stacks=chain))

    assert "6 library frames" in page.text


def test_deep_tree_that_parts_at_every_level_is_rendered() -> None:
    tree: list[StackNode] = []
    for rank in range(1000):
        tree = [StackNode("again", "/a.py", 1, f"0-{rank}", is_user_code=True, children=tree)]

    assert "again" in Page(msgspec.structs.replace(samples.stuck(), stacks=tree)).text


def test_page_of_ten_thousand_ranks_is_small() -> None:
    report = msgspec.structs.replace(samples.healthy(), coverage=Coverage(10_000, 10_000))

    assert len(render_html(report)) < 1_000_000


def test_healthy_page_with_a_note_says_first_that_it_is_healthy() -> None:
    note = msgspec.structs.replace(samples.waiting().findings[0], summary="rank 0 saves")

    text = Page(msgspec.structs.replace(samples.healthy(), findings=[note])).text

    assert text.index("nothing is wrong in what was read") < text.rindex("rank 0 saves")


def test_page_shows_what_communication_cost() -> None:
    row = CommunicationRow(
        op="all_reduce", group="dp", ranks=4, bytes_from=1024, bytes_to=2048,
        calls=7, bytes=7168, median_ms=1.5,
    )  # fmt: skip
    costs = Communication(rows=[row], span_s=2.0, exposed_share=0.25)
    page = Page(msgspec.structs.replace(samples.stuck(), communication=costs))

    assert "What communication cost" in page.text
    assert "communication: in 2 s, ranks wait 25% in synchronous ops" in page.text
    assert "all_reducedp>=1 KiB71.5" in page.text
    assert "What communication cost" not in Page(samples.stuck()).text


def test_page_shows_the_last_executed_lines_of_the_culprit() -> None:
    loop = ExecutedRun(340, [Site("/job/train.py", 12, "<train>"), Site("/job/loss.py", 3, "t")])
    paths = [
        ExecutedPath(rank=rank, thread="MainThread", is_main=True, count=681, runs=[loop])
        for rank in (1, 0)
    ]
    text = Page(msgspec.structs.replace(samples.stuck(), executed=paths)).text

    assert "last lines that rank 0 executed" in text
    assert "rank 1 executed" not in text
    assert "340 x train.py:12 in <train> > loss.py:3 in t" in text
    assert "executed last" not in Page(samples.stuck()).text
