"""A padded case is as long as a real log, and what is true of it stays where the truth says."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.logs.cases import Case, Truth, all_cases
from tests.logs.pad import Padded, Size, node_of, pad_case
from tests.logs.stamps import blank_stamps, find_stamps, shift_stamps

CASES = all_cases()
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

PLAIN = Size(ranks=24, seed=5)
DRESSED = Size(
    ranks=48, seed=5, skew=90.0, interleave=True, wrap="k8s", colour=True, crlf=True, lines=6
)


def undress(line: str, year: int) -> str:
    """Take away what padding may add to a line."""
    line = re.sub(r"\x1b\[\d+m", "", line).removesuffix("\r")
    line = re.sub(r"^\S+Z stderr F ", "", line)
    return blank_stamps(line, year)


def lines_of(padded: Padded, file: str) -> list[str]:
    return padded.files[file].decode().removesuffix("\n").split("\n")


def truth_of(padded: Padded) -> Truth:
    assert padded.truth is not None
    return padded.truth


@EACH
@pytest.mark.parametrize("size", [PLAIN, DRESSED], ids=["plain", "dressed"])
def test_lines_of_the_truth_stay_intact(case: Case, size: Size) -> None:
    padded = pad_case(case, size)
    year = case.truth.clock.start.year

    truth = truth_of(padded)
    for cite in truth.lines:
        line = lines_of(padded, cite.file)[cite.line - 1]
        assert cite.has in undress(line, year), cite.at
    for role in ("cause", "cascade", "decoy"):
        assert len(truth.cited(role)) >= len(case.truth.cited(role))
    assert (truth.code, truth.ranks, truth.nodes) == (
        case.truth.code,
        case.truth.ranks,
        case.truth.nodes,
    )


@EACH
def test_every_line_of_the_case_is_kept_in_order(case: Case) -> None:
    padded = pad_case(case, DRESSED)
    year = case.truth.clock.start.year

    for file in case.truth.files:
        left = iter(undress(line, year) for line in lines_of(padded, file.name))
        for line in case.read_lines(file.name):
            want = re.sub(
                r"\b(n[rR]anks |world_size=|WORLD_SIZE=)\d+", "", blank_stamps(line, year)
            )
            assert any(
                re.sub(r"\b(n[rR]anks |world_size=|WORLD_SIZE=)\d+", "", got) == want
                for got in left
            ), line


@EACH
def test_healthy_lines_lie_between_start_and_failure(case: Case) -> None:
    padded = pad_case(case, PLAIN)
    clock = case.truth.clock

    for file in case.truth.files:
        own = set(case.read_lines(file.name))
        for line in lines_of(padded, file.name)[file.insert :]:
            if line in own or re.search(r"[Rr]ank ?\d+\]", line):
                continue
            for stamp in find_stamps(line, clock.start.year, clock.start):
                if stamp.style != "uptime":
                    assert clock.start <= stamp.time.replace(tzinfo=None) <= clock.failed, line


@EACH
def test_the_same_seed_gives_the_same_bytes(case: Case) -> None:
    first, second = pad_case(case, DRESSED), pad_case(case, DRESSED)
    other = pad_case(case, msgspec.convert({**vars(DRESSED), "seed": 6}, Size))

    assert first.files == second.files
    assert first.truth == second.truth
    assert first.files != other.files


@EACH
def test_ranks_grow_only_where_the_truth_allows(case: Case) -> None:
    padded = pad_case(case, Size(ranks=64, lines=2))

    world = truth_of(padded).world
    assert world == (max(64, case.truth.world) if case.truth.pad.grow else case.truth.world)
    written = sum(data.count(b"\n") for data in padded.files.values())
    new = world - case.truth.world
    assert written >= 2 * new


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.truth.pad.like is not None], ids=lambda case: case.name
)
def test_new_ranks_have_lines_of_their_own(case: Case) -> None:
    like = case.truth.pad.like

    truth = truth_of(pad_case(case, Size(ranks=case.truth.world + 3)))

    assert len(truth.lines) > len(case.truth.lines)
    if like in case.truth.victims:
        assert truth.victims == [*case.truth.victims, *range(case.truth.world, truth.world)]


@EACH
def test_new_ranks_are_on_nodes_that_fit(case: Case) -> None:
    truth = case.truth
    if not truth.pad.grow:
        assert truth_of(pad_case(case, Size(ranks=512, lines=1))).world == truth.world
        return
    old = {node_of(truth, rank) for rank in range(truth.world)}
    new = [node_of(truth, rank) for rank in range(truth.world, 512)]
    full = [node for node in new if node in old]

    # A node of the case may have room left; no other new node has its name.
    assert len(full) < truth.pad.per_node * len(old)
    assert set(truth.nodes) <= old | {file.node for file in truth.files}


@pytest.mark.parametrize("ranks", [8, 128, 512])
def test_padding_reaches_the_sizes_of_real_jobs(ranks: int) -> None:
    case = next(case for case in CASES if case.name == "c206-one-rank-26")

    padded = pad_case(case, Size(ranks=ranks, lines=4))

    text = b"\n".join(padded.files.values())
    assert truth_of(padded).world == ranks
    assert text.count(b"\n") >= ranks * 4
    assert (f"[rank{ranks - 1}]: ".encode() in text) == (ranks > 0)


def test_copied_lines_have_the_prefix_of_the_new_rank() -> None:
    case = next(case for case in CASES if case.name == "c204-first-observed-decoy")

    padded = pad_case(case, Size(ranks=8, lines=1))

    lines = lines_of(padded, "node-n3.log")
    assert {line.split(":")[0] for line in lines} == {"[default0]", "[default1]"}
    assert "[default1]:[rank7]: Traceback (most recent call last):" in lines
    assert "[default0]:[rank6]: Traceback (most recent call last):" in lines


def test_clocks_of_nodes_differ_and_keep_their_differences() -> None:
    case = next(case for case in CASES if case.name == "c205-shape-all-ranks")
    year = case.truth.clock.start.year

    padded = pad_case(case, Size(ranks=4, skew=90.0, lines=4))

    offsets: dict[str, set[timedelta]] = {}
    for cite in case.truth.files:
        own = [line for line in case.read_lines(cite.name) if "step failed" in line]
        now = [line for line in lines_of(padded, cite.name) if "step failed" in line]
        (before,), (after,) = (
            [stamp.time for stamp in find_stamps(lines[0], year)] for lines in (own, now)
        )
        offsets.setdefault(str(cite.node), set()).add(after - before)
    assert {len(found) for found in offsets.values()} == {1}
    assert offsets["n0"] != offsets["n1"]
    assert all(abs(off) <= timedelta(seconds=91) for found in offsets.values() for off in found)


def test_a_padded_case_can_be_written(tmp_path: Path) -> None:
    padded = pad_case(CASES[0], Size(ranks=8))

    folder = padded.write(tmp_path / "case")

    read = msgspec.json.decode((folder / "truth.json").read_bytes(), type=Truth)
    assert read == padded.truth
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        *padded.files,
        "truth.json",
    }


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("E1019 01:04:03.357615073 x", "E1019 01:05:33.357615073 x"),
        ("[rank7]:[E304 23:59:59.000000001 x", "[rank7]:[E305 00:01:29.000000001 x"),
        ("[2026-03-04 10:00:00,123] x", "[2026-03-04 10:01:30,123] x"),
        ("2026-03-04T10:00:00Z x", "2026-03-04T10:01:30Z x"),
        ("Mar  4 10:00:00 n0 kernel: x", "Mar  4 10:01:30 n0 kernel: x"),
        ("[Wed Mar  4 23:59:00 2026] x", "[Thu Mar  5 00:00:30 2026] x"),
        ("[Mar 04 2026 10:00:00] [ERROR]", "[Mar 04 2026 10:01:30] [ERROR]"),
        ("Wed, 04 Mar 2026 10:00:00 +0000", "Wed, 04 Mar 2026 10:01:30 +0000"),
        ("03/04/2026 10:00:00 - INFO", "03/04/2026 10:01:30 - INFO"),
        ("[ 1234.567890] x", "[ 1234.567890] x"),
        ("10.0.0.12<41237> status=12", "10.0.0.12<41237> status=12"),
    ],
)
def test_stamps_move_in_their_own_style(line: str, moved: str) -> None:
    assert shift_stamps(line, 90, 2026) == moved


def test_a_date_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="day"):
        list(find_stamps("2026-02-31 10:00:00", 2026))
