"""Thresholds lie in one file, and a user's own goes over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystuck.check.checks import CHECKS, DEEP, choose_checks, list_names
from whystuck.check.policy import read_policy
from whystuck.diagnose.rules import RULES
from whystuck.evidence.errors import UsageError


def test_a_file_of_the_user_changes_what_it_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('blocking = ["N403"]\n[shm]\nmin_free_mb = 7\n[deadlines]\ndisk = 1\n')

    policy = read_policy(path)

    assert policy.shm.min_free_mb == 7
    assert policy.blocking == ("N403",)
    assert policy.find_deadline("disk") == 1
    assert policy.find_deadline("torch") == read_policy().find_deadline("torch")
    assert policy.disk == read_policy().disk


@pytest.mark.parametrize(
    "text",
    [
        "[shm]\nfree = 7\n", '[shm]\nmin_free_mb = "x"\n', "shm = 1", "[", f"a = {'[' * 100_000}",
        f"# {'x' * 300_000}",
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_a_hint(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)

    with pytest.raises(UsageError, match=r"policy\.toml") as told:
        read_policy(path)

    assert "--show-policy" in told.value.hint


def test_blocking_codes_and_those_of_checks_have_rules() -> None:
    codes = {rule.code for rule in RULES}

    assert {code for check in (*CHECKS, *DEEP) for code in check.codes} <= codes
    assert set(read_policy().blocking) <= codes


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(UsageError, match="`disc`"):
        choose_checks(["disc"])


def test_facts_are_told_with_every_choice() -> None:
    assert [check.name for check in choose_checks(["shm"])] == ["facts", "shm"]
    deep = [check.name for check in choose_checks(is_deep=True)]
    assert deep == [check.name for check in (*CHECKS, *DEEP)]
    assert set(deep) < set(list_names())
    assert [check.name for check in choose_checks()] == [check.name for check in CHECKS]


def test_a_deep_check_is_made_when_it_is_named() -> None:
    (named,) = (check.name for check in DEEP)

    assert [check.name for check in choose_checks([named])] == ["facts", named]
