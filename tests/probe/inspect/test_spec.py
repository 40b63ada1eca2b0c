"""The text of ``--inspect``: what it asks for, and what is wrong with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.probe.inspect.spec import SpecError, check_spec, parse_spec


def test_spec_when_it_has_all_items_then_each_is_there() -> None:
    spec = parse_spec(
        "stats:rate=0.5:seed=7:ops=all_reduce+broadcast:min=1k:max=2M,finite,weights:every=50:grads,"
        "amp,print:rank=0+2,print:ops=send,sync,call:checks.nan:Check:on=rank 3:action=raise"
    )
    assert spec.stats is not None
    assert (spec.stats.rate, spec.stats.seed) == (0.5, 7)
    assert (spec.stats.min_bytes, spec.stats.max_bytes) == (1024, 2 << 20)
    assert {"all_reduce", "all_reduce_coalesced", "broadcast"} <= spec.stats.ops
    assert "reduce" not in spec.stats.ops
    assert spec.finite is not None
    assert spec.weights is not None
    assert (spec.weights.every, spec.weights.grads) == (50, True)
    assert [one.ranks for one in spec.prints] == [frozenset({0, 2}), None]
    assert (spec.amp, spec.sync, spec.needs_ops) == (True, True, True)
    (call,) = spec.calls
    assert (call.target, call.ranks, call.action) == ("checks.nan:Check", frozenset({3}), "raise")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("amp", True),
        ("weights", True),
        ("finite", True),
        ("results", True),
        ("stats", True),
        ("print,sync", False),
        ("call:a:b", False),
    ],
)
def test_spec_when_it_looks_at_values_then_updates_are_counted(text: str, *, counts: bool) -> None:
    assert parse_spec(text).counts_updates is counts


def test_spec_when_it_asks_for_figures_then_results_are_compared_too() -> None:
    spec = parse_spec("stats:rate=0.5")
    assert spec.results is spec.stats
    assert parse_spec("finite").results is None
    spec = parse_spec("stats,results:ops=all_reduce")
    assert spec.results is not None
    assert "broadcast" not in spec.results.ops


def test_spec_when_it_is_about_weights_only_then_needs_no_ops() -> None:
    assert not parse_spec("weights,amp").needs_ops


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no item"),
        ("stats,", "'' is no item"),
        ("stat", "'stat' is no item; there are stats, finite"),
        ("stats,stats", "`stats` is there twice"),
        ("stats:rate=0", "`rate` is a number above 0 and up to 1, not '0'"),
        ("stats:rate=nan", "`rate` is a number"),
        ("stats:rate", "the option of `stats` is written `rate=VALUE`"),
        ("stats:rate=1:rate=1", "`rate` of `stats` is there twice"),
        ("stats:every=1", "`stats` has no option 'every'; it has rate"),
        ("stats:ops=allreduce", "'allreduce' is no op"),
        ("stats:min=2k:max=1k", "`max` is less than `min`"),
        ("stats:min=-1", "`min` is a whole number from 0"),
        ("stats:seed=" + "9" * 5000, "`seed` is a whole number"),
        ("weights:every=0", "`every` is a whole number from 1"),
        ("weights:grads=1", "the option of `weights` is written `grads`"),
        ("print:rank=x", "`rank` is a whole number"),
        ("amp:x=1", "`amp` has no option 'x'; it has none"),
        ("call", "`call` needs a module and a name"),
        ("call:os", "`call` needs a module and a name"),
        ("call:os.path:join;rm", "`call` needs a module and a name"),
        ("call:a:b:action=exit", "`action` is one of log, raise, break"),
        (",".join(["sync"] * 99), "more than 32 items"),
    ],
)
def test_spec_when_it_is_wrong_then_says_what(text: str, words: str) -> None:
    assert words in check_spec(text)


@given(st.text(alphabet="statsfinweghprcl:,=+0.19kM _é\x00", max_size=60))
def test_spec_when_it_is_anything_then_is_read_or_refused_in_one_sentence(text: str) -> None:
    problem = check_spec(text)
    assert len(problem) < 400
    if problem:
        with pytest.raises(SpecError):
            parse_spec(text)
    else:
        parse_spec(text)


def test_rate_when_an_op_is_chosen_then_it_is_on_all_ranks_and_about_that_often() -> None:
    one, other = (parse_spec("stats:rate=0.25:seed=3").stats for _ in range(2))
    assert one is not None
    assert other is not None
    chosen = [one.takes("all_reduce", "0", seq) for seq in range(4000)]
    assert chosen == [other.takes("all_reduce", "0", seq) for seq in range(4000)]
    assert 900 < sum(chosen) < 1100
    again = parse_spec("stats:rate=0.25:seed=4").stats
    assert again is not None
    assert chosen != [again.takes("all_reduce", "0", seq) for seq in range(4000)]
