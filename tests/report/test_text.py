from __future__ import annotations

import re

import msgspec
import pytest
from tests.report import samples

from whystuck.evidence.finding import Coverage, Gap, Place, Report
from whystuck.report.text import render_text

STUCK = """\
 read 4 of 4 ranks · 1 node · flight recorder, stacks, logs · stalled for 43 s

error[H102]: rank 0 made an extra barrier in save_checkpoint; every later op of group 0 is off
    by one
  --> /home/ann/jobs/train.py:5 in save_checkpoint · rank 0
   |
 5 | dist.barrier()
   |
   |  where the ranks are now (main thread):
   |  -> rank 0     main train.py:22 > save_checkpoint train.py:5 > barrier
   |     ranks 1-3  main train.py:22 > train_step train.py:12 > all_reduce
   |
   = why: rank 0 issued barrier 41, no other rank did [1]
          ranks 1-3 wait in all_reduce 41 [2]
   = evidence: [1] n3/rank-0/fr.pickle row 812 · [2] n3/rank-1/fr.pickle row 811
   = figures: op: barrier · lost 41 ms
   = culprit: rank 0 on n3 in group 0
   = victims: ranks 1-3 only suffer from it
   = ruled out: dead process · shape mismatch
   = fix: call the barrier on every rank, or on none
   = confidence: certain: the evidence leaves no other explanation

hint: `whystuck explain H102` explains this finding

note[E901]: no kernel log of ranks 2-3: permission denied

Found 1 error, 0 warnings, 1 note · verdict: stuck
"""

WAITING = """\
 read 2 of 2 ranks · stacks · moving again after 1 m 35 s

note[H117]: rank 0 tokenises, and the others wait for it
   = culprit: rank 0
   = victims: rank 1 only suffers from it
   = confidence: likely: the evidence fits, and no other explanation fits as well

hint: `whystuck explain H117` explains this finding

Found 0 errors, 0 warnings, 1 note · verdict: waiting
"""

HEALTHY = """\
healthy: nothing is wrong in what was read (read 4 of 4 ranks · flight recorder, stacks)
"""

INCONCLUSIVE = """\
 read 1 of 4 ranks · flight recorder

inconclusive: the evidence does not tell what is wrong
   = fix: run `whystuck snapshot` on each node while the job does not move, then `whystuck
          diagnose` the folder it writes

note[E901]: no flight recorder dump of ranks 1-3: no answer in 5 s
note[E901]: no stacks: none in the folder

Found 0 errors, 0 warnings, 2 notes · verdict: inconclusive
"""


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (samples.stuck(), STUCK),
        (samples.waiting(), WAITING),
        (samples.healthy(), HEALTHY),
        (samples.inconclusive(), INCONCLUSIVE),
    ],
    ids=["stuck", "waiting", "healthy", "inconclusive"],
)
def test_text_of_a_report_is_exactly_this(report: Report, expected: str) -> None:
    assert render_text(report, color=False, width=95) == expected


@pytest.mark.parametrize("name", samples.ALL)
def test_colour_adds_sequences_and_nothing_else(name: str) -> None:
    report = samples.ALL[name]()

    plain = render_text(report, color=False, width=95)
    colored = render_text(report, color=True, width=95)

    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    assert colored != plain
    assert "\x1b" not in plain


def test_more_than_three_findings_are_counted_with_their_names() -> None:
    text = render_text(samples.many(), color=False, width=95)

    assert text.count("\nwarning[") == 2
    assert "  and 2 more: S302 other-2, S303 other-3\n" in text
    assert "Found 1 error, 4 warnings, 0 notes" in text


def test_healthy_job_with_a_gap_tells_the_gap() -> None:
    report = msgspec.structs.replace(samples.healthy(), gaps=[Gap(None, "kernel log", "denied")])

    text = render_text(report, color=False, width=95)

    assert "healthy: nothing is wrong in what was read\n" in text
    assert "note[E901]: no kernel log: denied\n" in text


def test_hostile_text_is_one_visible_line_and_moves_no_cursor() -> None:
    text = render_text(samples.hostile(), color=False, width=95)

    assert not re.search(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text
    )
    assert r"\x1b[31m\u202e\x9b2J\nnext\udce9" in text
    assert not any(line.startswith("next") for line in text.splitlines())


@pytest.mark.parametrize("width", [1, 60, 95, 120])
def test_prose_keeps_the_width(width: int) -> None:
    lines = render_text(samples.stuck(), color=False, width=width).splitlines()

    prose = [line for line in lines if not re.match(r"\s+(-->|\|)", line)]

    assert max(map(len, prose)) <= max(width, 60)


def test_many_places_and_gaps_are_cut_and_counted() -> None:
    finding = msgspec.structs.replace(
        samples.extra_collective(), where=[Place(n, "/a/b.py", n, "f") for n in range(9)]
    )
    report = msgspec.structs.replace(
        samples.stuck(), findings=[finding], gaps=[Gap(n, f"file {n}", "gone") for n in range(9)]
    )

    text = render_text(report, color=False, width=95)

    assert text.count("-->") == 4
    assert "   | and 5 more places\n" in text
    assert text.count("note[E901]: no file") == 5
    assert "note[E901]: and 4 more gaps\n" in text


def test_ranks_at_one_place_are_folded() -> None:
    finding = msgspec.structs.replace(
        samples.extra_collective(), where=[Place(n, "/a/b.py", 7, "f") for n in (3, 0, 1)]
    )

    text = render_text(
        msgspec.structs.replace(samples.stuck(), findings=[finding]), color=False, width=95
    )

    assert "  --> /a/b.py:7 in f · ranks 0-1,3\n" in text


def test_inconclusive_report_without_findings_still_shows_where_the_ranks_are() -> None:
    report = msgspec.structs.replace(
        samples.inconclusive(), stacks=samples.stacks(), coverage=Coverage(4, 4, ["stacks"])
    )

    text = render_text(report, color=False, width=95)

    assert "   |     ranks 1-3  main train.py:22 > train_step train.py:12 > all_reduce\n" in text
    assert "whystuck run -- COMMAND" in text


def test_redacted_text_keeps_file_and_line_only() -> None:
    text = render_text(samples.stuck(), color=False, width=95, redact=True)

    assert "  --> …/train.py:5 in save_checkpoint · rank 0\n" in text
    assert "ann" not in text
    assert "n3" not in text
    assert "error[H102]" in text
