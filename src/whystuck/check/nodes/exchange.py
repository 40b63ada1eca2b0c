"""Something that each node has to say, told to all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from whystuck.check.check import Context
from whystuck.check.nodes.meeting import ComparedCheck, Meet, Names
from whystuck.check.runner import run_checks
from whystuck.evidence.nodes.checks import CheckResult

_MOST_CHARS = 16384


class Exchange(ComparedCheck):
    """No check, and no part of one: a text of each node."""

    name = "exchange"
    part = "nodes-exchange"

    def __init__(self, text: str = "") -> None:
        """Take what this node has to say."""
        self.text = text

    def settings(self, context: Context) -> dict[str, Any]:
        """Return the text, and for how long nodes that have met wait for each other."""
        return {"value": self.text, "wait_s": context.policy.nodes.clock_wait_s}

    def compare(self, told: Mapping[str, Any], names: Names, context: Context) -> CheckResult:
        """Return the texts by node rank."""
        del names, context
        texts = {str(int(rank)): str(text)[:_MOST_CHARS] for rank, text in told["values"].items()}
        return self.make_result(facts=texts)


def exchange_texts(
    text: str, label: str, context: Context, is_over: Callable[[], bool]
) -> tuple[dict[int, str], str]:
    """Tell other nodes a text, and hear theirs.

    Args:
        text: What this node has to say.
        label: What it is about: nodes with another label do not meet.
        context: Where they meet.
        is_over: Asked again and again whether to leave it.

    Returns:
        The texts by node rank, empty where there was no exchange, and what was wrong with it.
    """
    results = run_checks([Meet([Exchange.part], label), Exchange(text)], context, is_over=is_over)
    told = next((one for one in results if one.name == Exchange.name), None)
    reason = next((one.reason for one in results if one.reason), "")
    return {int(rank): said for rank, said in told.facts.items()} if told else {}, reason
