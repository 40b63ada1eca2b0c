"""Rules say which findings of others only follow from theirs; the rulebook goes by that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.diagnose.test_failed_rules import extra_barrier

from whystuck.diagnose.context.losses import Losses
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.rulebook import DEFAULT
from whystuck.diagnose.rules import RULES
from whystuck.evidence.finding import Confidence, Finding, Severity, Verdict

E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE


def make(code: str, severity: Severity = E) -> Finding:
    """Make a finding of a code."""
    name = DEFAULT.find_rule(code).name
    return Finding(
        code=code,
        name=name,
        severity=severity,
        confidence=Confidence.LIKELY,
        summary=f"it is {name}",
    )


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        # Whoever ends a job explains what ranks did then, but no calls that were lost before.
        ([make("H102"), make("C207", W), make("H124")], ["H124", "C207"]),
        ([make("H102"), make("C207", N)], ["H102", "C207"]),
        # Before training, others wait for ranks to come: only where the rendezvous surely failed.
        ([make("H101"), make("H117"), make("H102"), make("H121")], ["H102", "H121"]),
        ([make("H101"), make("H121", W)], ["H101", "H121"]),
        # Who waited until a limit, or lost a peer, knows no cause.
        ([make("C211"), make("C209")], ["C209"]),
        ([make("C211"), make("H102", N), make("N417")], ["C211", "N417", "H102"]),
        ([make("C209"), make("C211"), make("C204", W)], ["C204"]),
    ],
)
def test_what_only_follows_is_left_out(found: list[Finding], kept: list[str]) -> None:
    assert [item.code for item in DEFAULT.fold(found, Losses(is_cause=True), ())] == kept


@pytest.mark.parametrize(
    ("code", "failed", "is_open"),
    [
        ("C211", {"H102"}, True),
        ("C211", {"N417", "P504"}, False),
        ("H101", {"H121"}, True),
        ("H102", {"H121"}, False),
        ("H102", {"C207"}, True),
        ("H124", {"C207"}, False),
    ],
)
def test_finding_is_open_where_a_rule_failed_that_might_explain_it(
    code: str, failed: set[str], *, is_open: bool
) -> None:
    assert DEFAULT.is_open(code, failed, Losses()) is is_open


def test_finding_that_lost_calls_may_explain_is_open_while_these_are_unknown() -> None:
    found = {rule.code for rule in RULES if DEFAULT.is_open(rule.code, (), None)}

    assert found == {rule.code for rule in RULES if rule.loss_effect is not None}


def test_rule_that_is_given_to_the_engine_has_its_say() -> None:
    class Repaired(Rule):
        code, name = "H198", "repaired"
        explains = ("H102",)
        quiet_verdict = Verdict.WAITING

        def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
            yield self.make_finding("somebody mends it", Confidence.CERTAIN, Blame())

    class Seen(Repaired):
        code, name, severity = "H197", "seen", Severity.NOTE

    repaired = diagnose(extra_barrier(), rules=[*RULES, Repaired])
    seen = diagnose(extra_barrier(), rules=[Seen])

    assert [item.code for item in repaired.findings] == ["H198"]
    assert seen.verdict is Verdict.WAITING
