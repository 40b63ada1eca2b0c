"""Every line that matters in the corpus is read: as a known line, an exception, an end, a stack."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.logs.cases import Case, Citation, LogFile, Truth, all_cases
from tests.logs.pad import Size, node_of, pad_case

from whystuck.evidence.model import Evidence
from whystuck.pipeline import read_evidence

CASES = all_cases()
NAMES = [case.name for case in CASES]
SIZES = (
    pytest.param(Size(64, seed=3, interleave=True, wrap="k8s", colour=True), id="64-mixed"),
    pytest.param(Size(8, seed=1), id="8", marks=pytest.mark.slow),
    pytest.param(
        Size(32, seed=5, skew=20, wrap="compose", crlf=True), id="32", marks=pytest.mark.slow
    ),
    pytest.param(
        Size(512, seed=9, lines=4, interleave=True), id="512-mixed", marks=pytest.mark.slow
    ),
)


class Reading(NamedTuple):
    """What was made of a line."""

    what: str
    rank: int
    node: str


def list_readings(evidence: Evidence, cite: Citation) -> list[Reading]:
    """Return what was made of a line; several things may be."""
    name, line = cite.file, cite.line
    found = [
        Reading(item.signature, item.rank, item.node)
        for item in evidence.logs.events
        if item.artifact == name and item.row == line
    ]
    found += [
        Reading("exit", item.rank, item.node)
        for item in evidence.exits
        if item.artifact == name and item.row == line
    ]
    found += [
        Reading(item.type, item.rank, item.node)
        for item in evidence.exceptions
        if item.artifact == name and item.last_row == line
    ]
    return found + [
        Reading(item.reason, item.rank, item.node)
        for item in evidence.fatals
        if item.artifact == name and item.row <= line <= item.last_row
    ]


def find_mistakes(evidence: Evidence, truth: Truth, case: Case, folder: Path) -> list[str]:
    """Return what is wrong with the lines that are a cause: lost, or of another rank or node."""
    files = {file.name: file for file in case.truth.files}
    mistakes = []
    for cite in truth.cited("cause"):
        text = (folder / cite.file).read_bytes().split(b"\n")[cite.line - 1].decode()
        found = list_readings(evidence, cite)
        if not found:
            mistakes.append(f"{cite.at}: lost ({cite.has})")
        file = files.get(cite.file)
        writer = find_writer(file, text)
        nodes = find_nodes(case, file, truth, text)
        # An end is that of the process it tells of, not of who tells it.
        lines = [reading for reading in found if reading.what != "exit"]
        if writer is not None and any(reading.rank != writer for reading in lines):
            mistakes.append(f"{cite.at}: {found} not of rank {writer}")
        if any(reading.node not in nodes for reading in lines if reading.node):
            mistakes.append(f"{cite.at}: {found} not on {sorted(nodes)}")
    return mistakes


def find_writer(file: LogFile | None, text: str) -> int | None:
    """Return the rank that wrote a line, by what the corpus says of the file and the line."""
    if match := re.search(r"\[rank(\d+)\]", text):
        return int(match[1])
    if file is None or file.kind not in ("rank", "merged"):
        return None
    if file.kind == "rank":
        return file.rank
    numbered = re.search(r"(?:^|[ |F] )(\d+): ", text)
    return int(numbered[1]) if file.prefix == "{rank}: " and numbered else None


def find_nodes(case: Case, file: LogFile | None, truth: Truth, text: str) -> set[str]:
    """Return the hosts that a line may be of."""
    if file is not None and file.node and file.kind in ("kernel", "service"):
        return {file.node}
    nodes = {node_of(case.truth, rank) for rank in range(truth.world)} | set(truth.nodes)
    nodes |= {file.node or "" for file in case.truth.files}
    # What NCCL and torchelastic say in the line goes over it.
    return nodes | set(re.findall(r"([\w-]+):\d+:\d+ \[", text))


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_lines_that_are_a_cause_are_read(case: Case) -> None:
    evidence = read_evidence(case.folder)

    assert find_mistakes(evidence, case.truth, case, case.folder) == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_lines_that_are_a_cause_are_read_in_padded_logs(
    case: Case, size: Size, tmp_path: Path
) -> None:
    padded = pad_case(case, size)
    assert padded.truth is not None

    folder = padded.write(tmp_path / "logs")
    evidence = read_evidence(folder)

    assert find_mistakes(evidence, padded.truth, case, folder) == []
