from __future__ import annotations

import html
import re

import msgspec
import pytest
from tests.report import samples
from tests.safe_text.pages import render_page

from whystuck.evidence.finding import Report
from whystuck.report import render_all
from whystuck.report.html import render_html
from whystuck.report.markdown import render_markdown
from whystuck.report.text import render_text
from whystuck.report.words import describe_report


def flat(text: str) -> str:
    return " ".join(text.split())


def words_of_html(report: Report) -> str:
    page = re.sub(r"<(script|style).*?</\1>", "", render_html(report), flags=re.DOTALL)
    return flat(html.unescape(re.sub(r"<[^>]*>", "", page)))


def words_of_markdown(report: Report) -> str:
    return flat(render_page(render_markdown(report)).text)


@pytest.mark.parametrize("name", ["stuck", "waiting", "inconclusive"])
def test_all_formats_say_the_same_words(name: str) -> None:
    report = samples.ALL[name]()
    words = describe_report(report)
    said = [*words.headline, *words.gaps, words.verdict]
    for finding in words.findings:
        said += [finding.summary, finding.culprits, finding.victims, finding.confidence]
        said += [text for text, _ in finding.why]
        said += [*finding.evidence, *finding.figures, *finding.ruled_out, *finding.remedies]
        said += [f"{place.file}:{place.line}" for place in finding.places]

    for shown in (
        flat(render_text(report, color=False, width=95)),
        words_of_html(report),
        words_of_markdown(report),
    ):
        assert [text for text in said if text not in shown] == []


def test_render_all_gives_the_three_kept_files() -> None:
    files = render_all(samples.stuck())

    assert sorted(files) == ["report.html", "report.json", "report.txt"]
    assert files["report.txt"].startswith(b" read 4 of 4 ranks")
    assert b"\x1b" not in files["report.txt"]


def test_render_all_survives_hostile_text() -> None:
    assert all(render_all(samples.hostile()).values())


def test_markdown_acts_on_nothing_that_comes_from_the_job() -> None:
    bait = "![x](http://evil/p.png) <b>bold</b> | **now** `a` `<i>` # [y](z)"
    finding = msgspec.structs.replace(samples.extra_collective(), summary=bait, ruled_out=["a ` b"])

    report = msgspec.structs.replace(samples.stuck(), findings=[finding])
    page = render_page(render_markdown(report))

    assert not page.elements.keys() & {"a", "img", "b", "i"}
    assert "![x](http://evil/p.png) <b>bold</b> | **now** a <i> # [y](z)" in page.words
    assert "a ` b" in page.words


def test_markdown_of_a_place_with_backticks_stays_one_code_span() -> None:
    details = {"code": {f"{samples.TRAIN}:5": "x = `evil` | ``b``"}}
    finding = msgspec.structs.replace(samples.extra_collective(), details=details)

    page = render_page(
        render_markdown(msgspec.structs.replace(samples.stuck(), findings=[finding]))
    )

    assert "x = `evil` | ``b``" in page.words
