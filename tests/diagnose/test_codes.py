"""A code is written once: in the file of its rule, or in `codes.py` where more modules name it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from whystuck import diagnose
from whystuck.diagnose import codes
from whystuck.diagnose.rulebook import DEFAULT
from whystuck.diagnose.rules import RULES

PACKAGE = Path(diagnose.__file__).parent
PLACE = PACKAGE / "codes.py"
CODE = re.compile(r"[CEHNPSV]\d{3}")


def list_literals(path: Path) -> Iterator[str]:
    """Return the codes that the code of a module holds as strings; docstrings may name any."""
    nodes = ast.walk(ast.parse(path.read_text()))
    texts = (str(node.value) for node in nodes if isinstance(node, ast.Constant))
    return (text for text in texts if CODE.fullmatch(text))


def test_no_module_but_that_of_its_rule_holds_a_code() -> None:
    """Name the code in `codes.py`, and write `codes.NAME` in the module and in the rule."""
    found = {
        f"{path.relative_to(PACKAGE)}: {code}"
        for path in PACKAGE.rglob("*.py")
        if path != PLACE
        for code in list_literals(path)
        if not path.name.startswith(f"{code.lower()}_")
    }

    assert found == set()


def test_a_code_is_written_once() -> None:
    found = [code for path in PACKAGE.rglob("*.py") for code in list_literals(path)]

    assert sorted(found) == sorted({rule.code for rule in RULES} | {codes.RULE_FAILED})


def test_code_is_named_as_its_rule_is() -> None:
    names = {rule.code: rule.name.upper().replace("-", "_") for rule in RULES}
    named = {code: name for name, code in vars(codes).items() if CODE.fullmatch(str(code))}

    assert named.items() - {(codes.RULE_FAILED, "RULE_FAILED")} <= names.items()


def test_rules_explain_codes_and_families_that_there_are() -> None:
    known = {rule.code for rule in RULES} | {rule.code[0] for rule in RULES}

    assert {code for rule in RULES for code in rule.explains} <= known
    assert all(DEFAULT.find_rule(rule.code) is rule for rule in RULES)
