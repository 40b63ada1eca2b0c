"""Rules of the TOML file: what is accepted, and how errors help."""

import tomllib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whystuck.agent.triggers.rules import TriggerKind, TriggerRule, Whom, parse_rules
from whystuck.evidence.errors import UsageError

FULL = """
[agent]
folder = "/x"

[[trigger]]
name = "slow steps"
when = "step-time"
threshold = 35
for_s = 120
iterations = 3
shapes = true
cooldown_s = 60
max_per_day = 2
ranks = "all"
job = "llama"

[[trigger]]
name = "stuck"
when = "stall"

[metrics]
every_s = 1
"""


def parse(text: str) -> tuple[TriggerRule, ...]:
    return parse_rules(tomllib.loads(text)["trigger"], text)


def test_rules_are_read_with_the_defaults_of_their_kind() -> None:
    slow, stuck = parse(FULL)

    assert slow == TriggerRule(
        name="slow steps",
        when=TriggerKind.STEP_TIME,
        threshold=35,
        for_s=120,
        iterations=3,
        shapes=True,
        cooldown_s=60,
        max_per_day=2,
        ranks=Whom.ALL,
        job="llama",
    )
    assert (stuck.threshold, stuck.for_s, stuck.iterations, stuck.stacks) == (300, 0, 0, True)


def test_duration_is_taken_instead_of_the_default_iterations() -> None:
    (rule,) = parse_rules([{"name": "a", "when": "step-time", "duration_ms": 800}])

    request = rule.request("job", [3], "/out")
    assert (request.iterations, request.duration_ms, request.ranks) == (0, 800, (3,))
    assert (request.job, request.output) == ("job", "/out")


def test_modules_and_operations_are_asked_for_with_what_they_need() -> None:
    asked = {"name": "a", "when": "step-time", "modules": True, "flops": True}
    (rule,) = parse_rules([asked])

    request = rule.request("job", [], "/out")
    assert request.stacks
    assert request.shapes


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (("threshold = 35", "treshold = 35"), "line 8, .*`treshold` is no key", "`threshold`"),
        (('when = "step-time"', 'when = "steptime"'), "line 7, .*`when`", "`step-time`"),
        (('when = "stall"', 'when = "weather"'), "line 19, .*number 2", "known here: step-time"),
        (('when = "stall"', ""), "line 17, .*does not say `when`", "stall"),
        (('name = "stuck"', ""), "line 17, .*no `name`", "tell rules apart"),
        (('name = "stuck"', 'name = "slow steps"'), "line 18, .*another rule `slow steps`", "keys"),
        (('name = "stuck"', 'name = "../x"'), "line 18, .*`name` may not be", "letters"),
        (("threshold = 35", 'threshold = "35"'), "line 8, .*`threshold`: expected `float`", "keys"),
        (("threshold = 35", "threshold = -1"), "line 8, .*`threshold`: expected", "keys"),
        (("max_per_day = 2", "max_per_day = 0"), "line 13, .*`max_per_day`", "keys"),
        (("for_s = 120", "for_s = nan"), "line 9, .*may not be nan", "number"),
        (('ranks = "all"', 'ranks = "some"'), "line 14, .*`ranks`: invalid", "keys"),
        (('when = "stall"', 'when = "stall"\niterations = 3'), "line 20, .*stalls", "duration_ms"),
        (("shapes = true", "duration_ms = 5"), "line 11, .*both", "leave one"),
        (
            ('when = "stall"', 'when = "gpu-utilization-low"\nthreshold = 101'),
            "line 20, .*too much",
            "percentage up to 100",
        ),
    ],
)
def test_errors_tell_the_line_and_what_was_meant(
    change: tuple[str, str], message: str, hint: str
) -> None:
    assert change[0] in FULL
    with pytest.raises(UsageError, match=message) as caught:
        parse(FULL.replace(*change))

    assert hint in caught.value.hint


def test_error_without_the_text_tells_the_table() -> None:
    tables: list[dict[str, Any]] = [
        {"name": "a", "when": "stall"},
        {"name": "b", "when": "stall", "job": 5},
    ]

    with pytest.raises(UsageError, match=r"^\[\[trigger\]\] number 2: `job`"):
        parse_rules(tables)


def test_too_many_rules_are_refused() -> None:
    with pytest.raises(UsageError, match="more than 32"):
        parse_rules([{"name": f"r{i}", "when": "stall"} for i in range(33)])


KEYS = st.sampled_from([*TriggerRule.__struct_fields__, "x"])
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=9),
    st.lists(st.integers()),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, VALUES), st.sampled_from([*TriggerKind, "x"]))
def test_any_table_is_read_or_refused(table: dict[str, Any], when: str) -> None:
    try:
        (rule,) = parse_rules([{"name": "a", "when": when, **table}])
    except UsageError:
        return
    assert 0 < rule.threshold <= 1e6
    assert 0 <= rule.for_s <= 86_400
    assert rule.iterations >= 0
