"""Known lines are found in any log, however it comes in, by both engines alike."""

import platform
import random
import re
import sys
import tracemalloc
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.each import each

from whystuck.parse.logs.compiled import LogTables
from whystuck.parse.logs.search.engines import Engine
from whystuck.parse.logs.search.patterns import find_literals
from whystuck.parse.logs.search.scan import MAX_GROUP, MAX_LINE, Hit, LogPatterns, LogScanner
from whystuck.parse.logs.signatures import Signature, load_signatures, parse_signatures

OURS = (
    *parse_signatures(b"id,regex\nsite.caseless,(?i)very slow \\d+\nsite.end,the end$\n"),
    *load_signatures(),
)
FAST: list[Engine] = ["hyperscan"]
ENGINES: list[Engine] = ["numpy", *(FAST if find_spec("hyperscan") else [])]
PATTERNS: dict[Engine, LogPatterns] = {engine: LogPatterns(OURS, engine) for engine in ENGINES}
ECC = b"RuntimeError: CUDA error: uncorrectable ECC error encountered"

per_engine = pytest.mark.parametrize("engine", ENGINES)


def scan(data: bytes, engine: Engine = "numpy", block: int = 1 << 20) -> list[Hit]:
    scanner = LogScanner(PATTERNS[engine])
    hits = []
    for start in range(0, len(data), block):
        hits += scanner.feed(data[start : start + block])
    return hits + scanner.finish()


def scan_plainly(data: bytes, signatures: tuple[Signature, ...] = OURS) -> Iterator[Hit]:
    """Every pattern on every line: slow, and plain enough to be trusted."""
    compiled = [(item.id, re.compile(item.regex.encode())) for item in signatures]
    start = 0
    for line in re.split(rb"[\r\n]", data):
        for cut in range(0, len(line), MAX_LINE):
            piece = line[cut : cut + MAX_LINE]
            text = piece.lstrip(b"\0")
            for name, pattern in compiled:
                if match := pattern.search(text):
                    groups = {
                        key: value.decode(errors="replace")[:MAX_GROUP]
                        for key, value in match.groupdict().items()
                        if value is not None
                    }
                    yield Hit(start + cut + len(piece) - len(text), text, name, groups)
        start += len(line) + 1


# Whole lines that match, the fixed texts alone, and what lies between lines or breaks them.
FRAGMENTS = st.one_of(
    st.sampled_from([item.example.encode() for item in OURS if item.example]),
    st.sampled_from([item.lookalike.encode() for item in OURS if item.lookalike]),
    st.sampled_from([text for item in OURS for text in find_literals(item.regex).texts]),
    st.sampled_from([b"\n", b"\r\n", b"\r", b"\0", b" ", b"the end", b"Very SLOW 7", b"\xff\xfe"]),
    st.binary(max_size=8),
    st.sampled_from([b"x" * (MAX_LINE - 30), b"\0" * MAX_LINE]),
)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=20, deadline=None)
@given(st.lists(FRAGMENTS, max_size=12).map(b"".join), st.integers(1, 40_000))
def test_engines_agree_with_the_plain_search(data: bytes, block: int) -> None:
    expected = list(scan_plainly(data))

    for engine in ENGINES:
        assert scan(data, engine) == expected
        assert scan(data, engine, block) == expected


@pytest.mark.skipif(platform.machine() != "x86_64", reason="no wheels of hyperscan")
def test_the_fast_engine_is_taken_where_it_is_installed() -> None:
    assert LogPatterns(OURS).engine == "hyperscan"


@per_engine
@each("signature", load_signatures(), lambda signature: signature.id)
def test_every_signature_is_found(engine: Engine, signature: Signature) -> None:
    data = b"a line before\n" + signature.example.encode() + b"\nand one behind\n"

    first, *_ = scan(data, engine)

    assert (first.offset, first.signature) == (14, signature.id)
    assert first.line == signature.example.encode()


@per_engine
@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_line_across_blocks_is_found(engine: Engine, block: int) -> None:
    data = b"one\n" + ECC + b"\ntwo"

    assert [(hit.offset, hit.signature) for hit in scan(data, engine, block)] == [
        (4, "cuda.ecc"),
        (4, "py.exc"),
    ]


@per_engine
def test_last_line_without_an_end_is_found(engine: Engine) -> None:
    scanner = LogScanner(PATTERNS[engine])

    assert scanner.feed(ECC) == []
    assert [hit.signature for hit in scanner.finish()] == ["cuda.ecc", "py.exc"]
    assert scanner.finish() == []


@per_engine
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends_do_not_matter(engine: Engine, end: bytes) -> None:
    data = end.join([b" 10%|#", ECC, b" 20%|##", b"torch.OutOfMemoryError", b""])

    hits = scan(data, engine)

    assert [hit.signature for hit in hits] == ["cuda.ecc", "py.exc", "cuda.oom", "py.exc"]
    assert all(data[hit.offset :].startswith(hit.line + end) for hit in hits)


@per_engine
def test_line_behind_a_hole_of_zeros_is_found(engine: Engine) -> None:
    hole = b"\0" * 100_000

    assert [(hit.offset, hit.line) for hit in scan(hole + ECC + b"\n", engine)][:1] == [
        (len(hole), ECC)
    ]


@per_engine
def test_groups_are_named_and_cut(engine: Engine) -> None:
    line = b"ModuleNotFoundError: No module named '" + b"a" * 500 + b"'"

    first, *_ = scan(line, engine)

    assert first.groups == {"module": "a" * MAX_GROUP}


@per_engine
def test_bytes_that_are_no_text_are_kept(engine: Engine) -> None:
    [hit] = scan(
        b"NVRM: Xid (PCI:0000:06:00): 154, GPU recovery action changed to \xff\xfe", engine
    )[:1]

    assert hit.line.endswith(b"\xff\xfe")
    assert hit.groups == {"act": "\N{REPLACEMENT CHARACTER}" * 2}


@per_engine
def test_very_long_line_is_searched_in_pieces(engine: Engine) -> None:
    # GIVEN a line of 10 MB with an error in its middle, and one behind it
    middle = 5_000_000 // MAX_LINE * MAX_LINE + 100
    data = b"x" * middle + b" CUDA out of memory. " + b"x" * 5_000_000 + b"\n" + ECC

    hits = scan(data, engine, 100_000)

    # THEN both are found, and what is kept of the line is short
    assert [hit.signature for hit in hits] == ["cuda.oom", "cuda.ecc", "py.exc"]
    assert hits[0].offset == middle - 100
    assert len(hits[0].line) == MAX_LINE


@per_engine
def test_noise_matches_nothing(engine: Engine) -> None:
    assert scan(random.Random(1).randbytes(4_000_000), engine) == []


@per_engine
def test_memory_does_not_grow_with_the_log(engine: Engine) -> None:
    scanner = LogScanner(PATTERNS[engine])
    block = b"iteration 1200 | lm loss: 2.31 | grad norm: 0.4 |\n" * 1000 + b"y" * 3000
    scanner.feed(block)

    # WHEN 200 blocks of a log go through, most of it one line without an end
    tracemalloc.start()
    for number in range(200):
        scanner.feed(block if number % 2 else b"z" * len(block))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # THEN no more is held than some copies of one block
    assert peak < 40 * len(block)


def test_no_signature_gives_no_hit() -> None:
    assert list(LogPatterns(()).scan(ECC)) == []


def test_without_hyperscan_the_other_engine_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a Python in which hyperscan cannot be loaded
    monkeypatch.setitem(sys.modules, "hyperscan", None)

    assert LogPatterns(OURS).engine == "numpy"
    with pytest.raises(ImportError):
        LogPatterns(OURS, "hyperscan")


@per_engine
def test_all_that_is_searched_for_can_be_by_each_engine(engine: Engine) -> None:
    LogTables(engine=engine)


def test_mark_that_is_too_short_is_refused_by_all_engines() -> None:
    for engine in ENGINES:
        with pytest.raises(ValueError, match="too short"):
            LogPatterns(OURS, engine, [b"=$?"])
