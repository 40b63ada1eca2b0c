"""No text makes a regular expression of the package take more than linear time.

What a job wrote, and what somebody pasted, may be made to do so.
"""

import re

import pytest
from tests.patterns.collecting import collect_patterns, list_modules
from tests.patterns.growth import find_slow
from tests.patterns.steps import StepCounter, TooManyStepsError

# Patterns that are given to a function, or are there for tests alone.
_CALLED = {
    "whystuck.parse.logs.lines.line_forms.PREFIX": {"match"},
    "whystuck.tracing.host.spans._COMPILE": {"fullmatch"},
    "whystuck.tracing.host.syncs._WRAPPER": {"fullmatch"},
}
# Where patterns are made at run time, and why no text can make use of that.
_MADE = {
    "check.host.kernel_log": "of the table of signatures",
    "cli.offline.explain_signature": "of the table of signatures",
    "cli.trace.options": "of who runs the command",
    "cli.trace.whatif": "of who runs the command",
    "diagnose.algorithms.failures.causes": "in a table that is a global",
    "diagnose.algorithms.failures.config_kinds": "in a table that is a global",
    "launch.incidents.torch_dumps": "a name and a number",
    "parse.logs.lines.line_forms": "in tables that are globals",
    "parse.logs.lines.own_prefixes": "80 characters, with numbers between others",
    "parse.logs.search.patterns": "checks signatures",
    "parse.logs.search.scan": "of the table of signatures",
    "parse.logs.signatures": "of the table of signatures",
    "probe.recorder.recorders": "in a table that is a global",
    "read.naming": "a name and a number",
    "report.redact": "names side by side",
    "safe_text.named_secrets": "possessive",
    "safe_text.secret_forms": "in a table that is a global",
    "tracing.classes": "in a table that is a global",
    "tracing.whatif.edges": "of who runs the command",
}


# In parts, as one test of a minute is waited for at the end of all.
@pytest.mark.parametrize("part", range(4))
def test_time_of_every_pattern_is_linear(part: int) -> None:
    slow = []
    for found in collect_patterns().patterns[part::4]:
        how = find_slow(found.pattern, _CALLED.get(found.name, found.methods))
        if how is not None:
            slow.append(f"{found.name} {found.pattern.pattern!r}: {how}")

    assert not slow, "\n".join(slow)


def test_patterns_of_all_kinds_are_found() -> None:
    names = {name for found in collect_patterns().patterns for name in found.names}

    assert len(collect_patterns().patterns) > 700
    # A global, a table of pairs, a mapping, a field of a dataclass, and a text in a function.
    for place in (
        "diagnose.logs.cases.processes.ends._SEGFAULT",
        "diagnose.logs.cases.values.reducer._",
        "parse.logs.lines.times._STYLES",
        "diagnose.algorithms.failures.config_kinds.KINDS",
        "read.tree: number = re.search",
    ):
        assert any(name.startswith(f"whystuck.{place}") for name in names), place


def test_patterns_made_at_run_time_are_known() -> None:
    """A new one needs a reason above, or is written so that it is found."""
    unknown = {
        line.partition(":")[0].removeprefix("whystuck.") for line in collect_patterns().unknown
    }

    assert unknown == set(_MADE)
    assert {f"whystuck.{name}" for name in _MADE} <= set(list_modules())


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(\w+\s*)+:", "match"),
        (r"(?:a|ab|b)*c", "match"),
        (r"a*b*a*$", "match"),
        (r"(.*)=(.*)=(.*);", "match"),
        (r".*foo.*bar", "search"),
        (r"\w+x", "search"),
        (r"\s+$", "search"),
        (r"(\S+)\[(\d+)\]: (?:segfault|trap).* in (\S+?)\[", "search"),
        (r"^\s*[|]\s?(.*?)\s*[|]?\s*$", "match"),
        (r"\s+(?=:)", "finditer"),
    ],
)
def test_slow_patterns_are_found(pattern: str, method: str) -> None:
    assert find_slow(re.compile(pattern), {method})


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(\w+\s*)+:", "one two three: four:"),
        (r"(?:a|ab|b)*c", "ababbc abc ab"),
        (r"(?i:rank) ?(\d{1,3}?)(?!\d)", "RANK 12, rank123 Rank1234"),
        (r"(?P<q>['\"]?)(\w+)(?P=q)(?(q)!|\?)", "'one'! two? \"three'"),
        (r"(a)?(?(1)b|c)+", "abbb ccc bc"),
        (r"(?<=x)\d++(?<!9)|(?>ab|a)b", "x129 x12 abb ab"),
        (r"^.*?$", "one\ntwo\n"),
        (r"(?m)^\S+$|\Bx\b", "one\ntwo three\nfour x ax\n"),
        (r"(?:a*)*(b|$)", "aaab aa"),
        (r"((a)|b)*\2", "abaa bb"),
        (r"(?s)a.{2,}?b", "a\n\nb aab axxb"),
    ],
)
@pytest.mark.parametrize("method", ["match", "fullmatch", "search", "finditer"])
def test_steps_end_where_a_match_does(pattern: str, text: str, method: str) -> None:
    compiled = re.compile(pattern)

    _, spans = StepCounter(compiled, 100_000, most_bounded=100).count(text, method)

    found = getattr(compiled, method)(text)
    matches = found if method == "finditer" else [found] if found else []
    # The counter goes on one character behind an empty match, `re` at the same one.
    expected = [match.span() for match in matches]
    if method == "finditer":
        spans, expected = ([one for one in each if one[0] < one[1]] for each in (spans, expected))
    assert spans == expected


def test_steps_of_a_known_pattern_are_counted() -> None:
    counter = StepCounter(re.compile("a*b"), 10_000)

    # From each of n places: the rest of the run, what follows it, and as many ways back.
    steps = [counter.count("a" * n, "search")[0] for n in (10, 20, 30)]

    assert steps[2] - 2 * steps[1] + steps[0] == 3 * 10**2
    with pytest.raises(TooManyStepsError):
        counter.count("a" * 1000, "search")


def test_slow_patterns_of_bytes_are_found() -> None:
    assert find_slow(re.compile(rb"a*b*a*$"), {"match"})


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(?:\w+,)*\w+:", "match"),
        (r"(?<!\w)\w+x", "search"),
        (r"\w{1,64}x", "search"),
        (r"foo.{0,200}bar", "search"),
        (r"(\S(?:.*\S)?)\s*$", "match"),
        (r"\w+x", "match"),
        (r"(?:a|b|c)+d", "match"),
    ],
)
def test_linear_patterns_are_left_alone(pattern: str, method: str) -> None:
    assert find_slow(re.compile(pattern), {method}) is None
