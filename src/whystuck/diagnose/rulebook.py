"""Which findings stand and which comes first, by what their rules say of each other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import is_told_by_check
from whystuck.diagnose.context.losses import Losses
from whystuck.diagnose.rule import Rule
from whystuck.diagnose.rules import RULES
from whystuck.evidence.finding import Confidence, Finding, Severity, Verdict
from whystuck.evidence.ranks import parse_ranks

# The families of rules that find why a job stopped.
_CAUSES = {codes.CRASH, codes.HANG}
_COSTS = ("share_of_step", "share_on_ranks")
# A rank that differs from its peers is a fault, with one place to mend; what all ranks share is
# how the job is made, and comes first only where it costs far more.
_FAULT_WEIGHT = 2.0
_SEVERITY_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_CONFIDENCE_ORDER = {Confidence.CERTAIN: 0, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}

# What programs say that end for a loss, a norm or a gradient.
_NOT_FINITE = re.compile(
    r"FloatingPointError|\b(?:NaNs?|infs?|infinit[ey]|(?:non-?)?finite)\b", re.IGNORECASE
)


class Rulebook:
    """Rules by their codes; findings of codes that it does not know have no precedence."""

    def __init__(self, rules: Iterable[type[Rule]]) -> None:
        self._rules: Mapping[str, type[Rule]] = {rule.code: rule for rule in rules}

    def find_rule(self, code: str) -> type[Rule]:
        """Return the rule of a code."""
        return self._rules.get(code, Rule)

    def fold(
        self, found: Sequence[Finding], losses: Losses, roots: Collection[str]
    ) -> list[Finding]:
        """Drop what only follows from another finding, and put the root cause first.

        Args:
            found: The findings of all rules.
            losses: Collectives that ranks lost.
            roots: The codes of what logs show as a cause.

        Returns:
            The findings that stand, in order.
        """
        kept = [
            item
            for item in found
            if not losses.explains(item, self.find_rule(item.code).loss_effect)
        ]
        kept = self._drop_fallbacks(kept)
        told = [self.find_rule(item.code) for item in kept if self._is_telling(item)]
        kept = [item for item in kept if not any(self._explains(rule, item.code) for rule in told)]
        kept = _drop_consequences(kept)
        return sorted(kept, key=lambda item: self._order(item, kept, losses, roots))

    def is_open(self, code: str, failed: Collection[str], losses: Losses | None) -> bool:
        """Return whether findings of a code might only follow from what failed rules would find.

        Args:
            code: The code of a finding.
            failed: The codes of the rules that failed.
            losses: None when it is not known what ranks lost.
        """
        rule = self.find_rule(code)
        if losses is None and rule.loss_effect is not None:
            return True
        if rule.fallback_level:
            return any(other[0] in _CAUSES for other in failed)
        return any(self._explains(self.find_rule(other), code) for other in failed)

    def _drop_fallbacks(self, kept: list[Finding]) -> list[Finding]:
        levels = {item.code: self.find_rule(item.code).fallback_level for item in kept}
        for code in sorted((code for code in levels if levels[code]), key=lambda one: -levels[one]):
            # How a machine is set up explains nothing by itself.
            others = [one for one in kept if one.code != code and one.code[0] != codes.NODE]
            waits = [one for one in kept if one.code == code == codes.COLLECTIVE_TIMEOUT]
            if any(
                item.severity is not Severity.NOTE or self._is_awaited(item, waits)
                for item in others
            ):
                kept = [item for item in kept if item.code != code]
        return kept

    def _is_awaited(self, item: Finding, waits: Sequence[Finding]) -> bool:
        """Return whether a note says for whom all waited until a time limit: one at work."""
        is_known = item.confidence is not Confidence.POSSIBLE
        is_at_work = self.find_rule(item.code).quiet_verdict is Verdict.WAITING
        victims = parse_ranks(item.victims.ranks)
        told = [parse_ranks(one.victims.ranks) for one in waits]
        return is_known and is_at_work and any(ranks and ranks <= victims for ranks in told)

    def _is_telling(self, item: Finding) -> bool:
        """Return whether a finding is grave enough to explain those of other rules."""
        least = self.find_rule(item.code).explains_from
        return _SEVERITY_ORDER[item.severity] <= _SEVERITY_ORDER[least]

    def _explains(self, rule: type[Rule], code: str) -> bool:
        return not {code, code[0]}.isdisjoint(rule.explains) and not self.find_rule(code).is_loss

    def _order(
        self, item: Finding, kept: Sequence[Finding], losses: Losses, roots: Collection[str]
    ) -> tuple[float, ...]:
        severity = _SEVERITY_ORDER[item.severity]
        if is_told_by_check(item):
            # What stopped the job comes first, however grave that is which a node has besides.
            severity += any(map(_is_of_job, kept)) * len(_SEVERITY_ORDER)
        # Where time goes explains nothing that stands still or died.
        if item.code[0] == codes.COST:
            cost = max(item.measures.get(name, 0.0) for name in _COSTS)
            return severity, True, -cost * (_FAULT_WEIGHT if item.culprits.ranks else 1.0)
        # What was lost comes before all that it may explain, or else after what stopped the job.
        is_loss = self.find_rule(item.code).is_loss
        place = 0 if not is_loss else -1 if losses.is_cause else 1
        place = place or int(_is_side_effect(item, kept)) - int(_is_complained_of(item, kept))
        is_late = item.code not in roots
        return severity, False, place, is_late, _CONFIDENCE_ORDER[item.confidence]


def _drop_consequences(found: Sequence[Finding]) -> list[Finding]:
    """Leave out findings about values that follow from another one.

    Values that are not finite and come no later than skipped updates are why these are skipped. A
    rank that alone skips an update has other parameters from then on.
    """
    by_code = {item.code: item for item in found if item.code[0] == codes.VALUES}
    weights, values, skipped = (
        by_code.get(code)
        for code in (codes.WEIGHTS_DIVERGED, codes.NOT_FINITE, codes.UPDATES_SKIPPED)
    )
    if skipped is None:
        return list(found)
    if "since_step" not in skipped.details:
        return list(found)  # as logs tell it, nobody counted
    since = skipped.details["since_step"]
    is_why = values and values.confidence is not Confidence.POSSIBLE
    if values and is_why and values.details.get("step", since + 1) <= since:
        return [item for item in found if item is not skipped]
    differs = skipped.details["reason"] == "ranks-differ"
    if weights and differs and weights.details["step"] >= since:
        return [item for item in found if item is not weights]
    return list(found)


def _is_of_job(item: Finding) -> bool:
    """Return whether a finding blames somebody for what the job did."""
    return not is_told_by_check(item) and item.severity is not Severity.NOTE


def _is_side_effect(item: Finding, found: Iterable[Finding]) -> bool:
    """Return whether skipped updates come after what stopped the job, or what differed before."""
    if item.code != codes.UPDATES_SKIPPED or "since_step" not in item.details:
        return False
    since = item.details["since_step"]
    return any(
        other.code[0] in {codes.HANG, codes.CRASH}
        or (other.code == codes.WEIGHTS_DIVERGED and other.details["step"] <= since)
        for other in found
    )


def _is_complained_of(item: Finding, found: Iterable[Finding]) -> bool:
    """Return whether values that are not finite are what ranks ended for, as they say."""
    return item.code == codes.NOT_FINITE and any(
        other.code in {codes.PYTHON_EXCEPTION, codes.SAME_EXCEPTION_EVERYWHERE}
        and _NOT_FINITE.search(
            f"{other.details.get('exception', '')} {other.details.get('message', '')}"
        )
        for other in found
    )


DEFAULT = Rulebook(RULES)
