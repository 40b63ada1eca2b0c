"""Nodes meet in a store of torch, and then measure together."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from whystuck.check.check import Check, Context
from whystuck.check.compute.torch_check import TorchCheck
from whystuck.check.host.facts import read_amd_driver, read_ascend_driver, read_nvidia_driver
from whystuck.check.nodes.place import DEFAULT_PORT, MeetingPlace
from whystuck.evidence.nodes.checks import CheckResult, Outcome

_NODES = "nodes"
_ALONE = MeetingPlace("127.0.0.1", DEFAULT_PORT, 1, 0)
_MOST_NAMES = 8


class NodesCheck(TorchCheck):
    """A check of all nodes together; where no coordinator is given, it is none."""

    @property
    def subject(self) -> str:
        """All nodes."""
        return _NODES

    def split(self, context: Context) -> Sequence[Check]:
        """Return itself, or nothing where this node is alone."""
        return [self] if context.meeting is not None else []


class Meet(NodesCheck):
    """Who has come in time. One that has not leaves the check incomplete, and holds up nobody."""

    name = "meeting"
    part = "meet"

    def __init__(self, parts: Sequence[str] = ()) -> None:
        """Take the parts that are to be made."""
        self.parts = tuple(parts)

    @property
    def subject(self) -> str:
        """The check has no other subject."""
        return ""

    def settings(self, context: Context) -> dict[str, Any]:
        """Return where and who: the versions that torch does not know are told here."""
        place = context.meeting or _ALONE
        drivers = {
            "NVIDIA driver": read_nvidia_driver(context),
            "AMD driver": read_amd_driver(context),
            "Ascend driver": read_ascend_driver(context),
        }
        return {
            "host": place.host,
            "port": place.port,
            "nodes": place.nodes,
            "rank": place.rank,
            "node": context.node,
            "meet_s": context.policy.nodes.meet_s,
            "nonce": secrets.token_hex(8),
            "parts": self.parts,
            "facts": {"kernel": platform.release(), **drivers},
        }

    def judge(self, told: Mapping[str, Any], context: Context) -> CheckResult:
        """Tell who came."""
        names = Names(told["members"])
        missing = [int(rank) for rank in told["missing"]]
        facts = {"came": names.join(names.ranks)}
        if told.get("interface"):
            facts["interface"] = str(told["interface"])
        result = self.make_result(facts=facts, figures={"nodes": float(len(names.ranks))})
        if not missing:
            return result
        ranks = ", ".join(map(str, missing[:_MOST_NAMES]))
        more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        which = "node rank" if len(missing) == 1 else "node ranks"
        reason = f"{which} {ranks}{more} did not come within {context.policy.nodes.meet_s:g} s"
        return replace(result, outcome=Outcome.INCOMPLETE, reason=reason)


class Names:
    """What nodes are called; one whose name another has, too, is told by its rank."""

    def __init__(self, told: Mapping[str, object]) -> None:
        names = {int(rank): str(name)[:64] or "a node" for rank, name in told.items()}
        shared = {name for name in names.values() if list(names.values()).count(name) > 1}
        self._names = {
            rank: f"{name} (node rank {rank})" if name in shared else name
            for rank, name in names.items()
        }
        self.ranks: list[int] = sorted(names)

    def __getitem__(self, rank: int) -> str:
        return self._names.get(rank, f"node rank {rank}")

    def join(self, ranks: Sequence[int]) -> str:
        """Name nodes in a sentence."""
        shown = [self[rank] for rank in ranks[:_MOST_NAMES]]
        more = len(ranks) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")

    def choose(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """Return the names of nodes that are blamed."""
        return tuple(self[rank] for rank in ranks)


class ComparedCheck(NodesCheck):
    """A node check that is judged by what all nodes told."""

    codes: ClassVar[tuple[str, ...]] = ()

    def judge(self, told: Mapping[str, Any], context: Context) -> CheckResult:
        """Judge what is told, by the names of the nodes."""
        return self.compare(told, Names(told["nodes"]), context)

    def compare(self, told: Mapping[str, Any], names: Names, context: Context) -> CheckResult:
        """Compare the nodes."""
        raise NotImplementedError
