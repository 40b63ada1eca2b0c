"""Every case of both sets is whole: what its truth says is there, and means something."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from pathlib import Path

from tests.each import each
from tests.logs.cases import CORPUS, REPORTS, Case, LogFile, all_cases
from tests.logs.healthy import OUTPUTS
from tests.logs.stamps import find_stamps

CASES = all_cases()
REPORTED = all_cases(REPORTS)
CRASHED = [f"C{number}" for number in range(201, 214)]
EACH = each("case", [*CASES, *REPORTED], lambda case: case.name)


def stamps_of(case: Case, file: LogFile) -> set[str]:
    """Return the styles of the times in a file; each must be a real time near the failure."""
    clock, styles = case.truth.clock, set()
    for line in case.read_lines(file.name):
        boot = file.boot or clock.start
        for stamp in find_stamps(line, clock.start.year, boot):
            styles.add(stamp.style)
            off = abs(stamp.time.replace(tzinfo=None) - clock.failed)
            assert off < timedelta(days=5), line
    return styles


def test_every_class_has_cases() -> None:
    count = Counter(case.truth.code for case in CASES)

    assert len(CASES) >= 60
    assert {code: count[code] for code in [*CRASHED, "H121", "H126"] if count[code] < 3} == {}
    assert count[None] >= 6


def test_reports_are_many_and_some_cannot_be_decided() -> None:
    count = Counter(case.truth.code for case in REPORTED)

    assert len(REPORTED) >= 60
    assert len(count) >= 15
    hard = [case for case in REPORTED if case.truth.inconclusive or case.truth.cited("decoy")]
    assert len(hard) >= len(REPORTED) // 5
    assert not {case.name for case in CASES} & {case.name for case in REPORTED}


def test_every_decoy_rule_has_a_case() -> None:
    rules = {line.rule for case in CASES for line in case.truth.lines if line.rule}

    assert rules == set(range(1, 11))


def test_versions_and_launchers_vary_in_each_class() -> None:
    for code in [*CRASHED, "H121", "H126"]:
        truths = [case.truth for case in CASES if case.truth.code == code]

        assert len({truth.torch for truth in truths}) >= 3, code
    assert len({case.truth.launcher.split()[0] for case in CASES}) >= 8


def test_folders_are_cases() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {case.name for case in CASES}
    assert {path.name for path in REPORTS.iterdir()} == {case.name for case in REPORTED}


@EACH
def test_files_are_those_the_truth_lists(case: Case) -> None:
    there = {
        str(path.relative_to(case.folder))
        for path in case.folder.rglob("*")
        if path.is_file() and path.name != "truth.toml"
    }

    assert there == {file.name for file in case.truth.files}
    for file in case.truth.files:
        lines = case.read_lines(file.name)
        assert file.insert <= len(lines)
        assert len(lines) <= (60 if case.folder.parent == CORPUS else 200)
        assert file.output in OUTPUTS


@EACH
def test_cited_lines_are_there(case: Case) -> None:
    for cite in case.truth.lines:
        lines = case.read_lines(cite.file)

        assert 1 <= cite.line <= len(lines)
        assert cite.has
        assert cite.has in lines[cite.line - 1]
    assert len({line.at for line in case.truth.lines}) == len(case.truth.lines)


@EACH
def test_truth_says_what_to_answer(case: Case) -> None:
    truth = case.truth

    if truth.inconclusive:
        assert truth.candidates
        assert truth.name is None
        assert [*truth.ranks, *truth.nodes, *truth.cited("cause")] == []
        assert truth.kind == "unknown"
        assert truth.cited("decoy")
    else:
        assert truth.name
        assert truth.cited("cause")
        assert truth.code not in {*truth.accept, *truth.candidates}
    assert not set(truth.ranks) & set(truth.victims) or truth.code == "C211"
    assert all(0 <= rank < truth.world for rank in [*truth.ranks, *truth.victims])
    assert truth.clock.start < truth.clock.failed


@EACH
def test_names_are_those_of_the_catalogue(case: Case) -> None:
    pages = Path(__file__).parents[2] / "src" / "whystuck" / "diagnose" / "rules"
    for page in pages.glob("*/*.py"):
        text = page.read_text()
        if case.truth.code and f'code = "{case.truth.code}"' in text:
            assert f'name = "{case.truth.name}"' in text


@EACH
def test_times_can_be_read(case: Case) -> None:
    for file in case.truth.files:
        assert sorted(stamps_of(case, file)) == file.stamps


@EACH
def test_kernel_logs_go_forward(case: Case) -> None:
    start = case.truth.clock.start
    for file in case.truth.files:
        if file.kind != "kernel":
            continue
        for style in file.stamps:
            times = [
                stamp.time
                for line in case.read_lines(file.name)
                for stamp in find_stamps(line, start.year, file.boot or start)
                if stamp.style == style
            ]
            assert times == sorted(times)


@EACH
def test_prefixes_name_ranks_of_the_file(case: Case) -> None:
    for file in case.truth.files:
        if file.kind == "merged":
            assert file.ranks
        elif file.kind == "rank":
            assert file.rank is not None
        if file.prefix:
            assert re.search(r"{(rank|local|node)}", file.prefix)
