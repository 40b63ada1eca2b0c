"""Lines that tell no more than progress are passed over, and what a log tells stays the same."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta
from random import Random

import pytest
from tests.logs.healthy import OUTPUTS, Moment

from whystuck.parse.logs.facts import LogFacts
from whystuck.parse.logs.plain_forms import PlainForms
from whystuck.parse.logs.reader import read_log
from whystuck.parse.logs.search.raw_lines import list_forms

# What follows lines that are open, rather than what the log tells.
READERS = {"loop", "pods", "looks"}
TOLD = "rank 3 is pid 4242"


def make_log(name: str, lines: int) -> bytes:
    rng, start = Random(7), datetime(2026, 3, 4, 10)  # noqa: DTZ001 - as logs have it
    moments = (
        Moment(3, 3, "n0", 8, start + timedelta(seconds=step), step, rng) for step in range(lines)
    )
    return "".join(OUTPUTS[name](moment) + "\n" for moment in moments).encode()


def read_facts(data: bytes, block: int) -> dict[str, object]:
    facts: LogFacts = read_log(data, block=block).facts
    return {one.name: getattr(facts, one.name) for one in fields(facts)} | dict.fromkeys(READERS)


def read_all(data: bytes, block: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Read a log of which each sampled line is taken apart."""
    with monkeypatch.context() as patch:
        patch.setattr(PlainForms, "find_like", lambda *_, **__: None)
        return read_facts(data, block)


@pytest.mark.parametrize("lines", [40, 2500])
@pytest.mark.parametrize("name", OUTPUTS)
def test_facts_are_those_of_all_lines(
    name: str, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_log(name, lines)
    for block in (1 << 16, len(data) * 2 // 3 + 1):
        assert read_facts(data, block) == read_all(data, block, monkeypatch)


@pytest.mark.parametrize("name", ["steps", "megatron", "lightning"])
def test_most_lines_of_steps_are_passed_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    sample = LogFacts.sample

    def count(*args: object) -> object:
        nonlocal taken
        taken += 1
        return sample(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(LogFacts, "sample", count)
    read_log(make_log(name, 900))
    assert taken < 200


def test_a_line_that_tells_more_is_taken_wherever_it_stands() -> None:
    lines = make_log("steps", 300).splitlines()
    lines.insert(150, TOLD.encode())
    assert read_log(b"\n".join(lines)).facts.rank_by_pid == {4242: {3}}


def test_steps_of_several_ranks_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(
        f"[rank{rank}]: step {step} loss 2.5\n" for step in range(20) for rank in range(48)
    )
    facts = read_facts(text.encode(), 1 << 20)
    assert facts == read_all(text.encode(), 1 << 20, monkeypatch)
    assert facts["progress"] == {rank: 19 * 48 + rank + 1 for rank in range(48)}


def test_forms_of_lines() -> None:
    lines = [b"step 7 loss 2.5", b"step 128 loss   11.25", b"step 9 loss nan", b"", b"loss"]
    first, second, third, *rest = list_forms(lines)
    assert first == second.replace(b"00", b"0") == b"step0loss0.0"
    assert third != first
    assert rest == [b"", b"loss"]
    assert list_forms([]) == []
