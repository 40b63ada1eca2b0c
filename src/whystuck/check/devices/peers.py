"""Whether devices of this node reach the memory of each other directly (N422)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.check.check import Context
from whystuck.check.devices.device import read_index
from whystuck.check.devices.links import LinkCheck
from whystuck.check.devices.look import DeviceLook, Vendor
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_BLOCKED = "N422"


class DevicePeers(LinkCheck):
    """Direct access between devices: a device that is cut off, or access that is switched off.

    Where no device can have it, as with consumer cards, nothing is wrong. One that is cut off while
    others are not may be alone behind its host bridge: that it should be reached is not certain.
    """

    name = "p2p"
    codes = (_BLOCKED,)

    def compare(
        self, found: Sequence[tuple[Vendor, list[DeviceLook]]], context: Context
    ) -> CheckResult:
        """Compare the devices of a vendor with each other."""
        del context
        problems: list[CheckProblem] = []
        facts: dict[str, str] = {}
        for _, looks in found:
            told = [look for look in looks if look.peers]
            problems += (*_judge_switch(told), *_judge_alone(told))
            for look in told:
                count = sum(not peer.refusal for peer in look.peers)
                facts[look.index] = f"reaches {count} of {len(look.peers)} other devices"
        is_single = all(len(looks) < 2 for _, looks in found)  # noqa: PLR2004 - a pair
        lack = "there is one device" if is_single else "the driver does not tell it"
        return self.tell(problems, facts, lack)


def _judge_switch(looks: Sequence[DeviceLook]) -> Iterator[CheckProblem]:
    pairs = sorted(
        {
            tuple(sorted((look.index, peer.index), key=read_index))
            for look in looks
            for peer in look.peers
            if peer.is_switched_off
        }
    )
    if pairs:
        named = [f"{one}-{other}" for one, other in pairs]
        more = f" and {len(pairs) - 4} more pairs" if len(pairs) > 4 else ""  # noqa: PLR2004
        yield CheckProblem(
            code=_BLOCKED,
            text="direct access is switched off in the driver between devices "
            f"{', '.join(named[:4])}{more}",
            subject=named[0],
            measures={"pairs": len(pairs), "threshold": 0},
            details={"pairs": named},
            remedies=("look for P2P in `NVreg_RegistryDwords`: `grep -r NVreg_ /etc/modprobe.d`",),
        )


def _judge_alone(looks: Sequence[DeviceLook]) -> Iterator[CheckProblem]:
    """Tell of a device that reaches none, where others reach some."""
    reached = {look.index: sum(not peer.refusal for peer in look.peers) for look in looks}
    if not any(reached.values()):
        return
    for look in looks:
        if reached[look.index] or any(peer.is_switched_off for peer in look.peers):
            continue
        yield CheckProblem(
            code=_BLOCKED,
            confidence="possible",
            text=f"device {look.index} reaches no other device directly ({look.peers[0].refusal}), "
            "and others do",
            subject=look.index,
            measures={"reached": 0, "threshold": 1},
            details={"device": read_index(look.index)},
        )
