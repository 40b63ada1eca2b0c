"""Each rule is a page of the documentation."""

from __future__ import annotations

import inspect
import re

from tests.each import each

from whystuck.diagnose.rule import Rule
from whystuck.diagnose.rules import RULES

HEADINGS = ["What it means", "How it is found", "False alarms", "What to do"]


@each("rule", RULES, lambda rule: rule.code)
def test_rule_has_a_page_and_remedies(rule: type[Rule]) -> None:
    page = inspect.cleandoc(rule.__doc__ or "")

    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == HEADINGS
    assert page.splitlines()[0].endswith(".")
    assert re.fullmatch(r"[CHNPSV]\d{3}", rule.code)
    assert rule.remedies


def test_codes_and_names_are_used_once() -> None:
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)
