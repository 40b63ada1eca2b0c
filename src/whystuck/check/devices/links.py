"""How devices are connected: PCI Express (N415), and links between devices (N416)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.check.check import Check, Context
from whystuck.check.devices.device import read_index
from whystuck.check.devices.look import DeviceLook, Vendor
from whystuck.check.devices.vendors import list_vendors, why_no_device
from whystuck.collect.node.nvidia_driver import DeviceLostError, DriverLostError
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome

_PCIE, _LINK = "N415", "N416"


class LinkCheck(Check):
    """A check of links: a device that is lost has none, and is told by another check."""

    def why_skipped(self, context: Context) -> str:
        """Return why there is nothing to check."""
        return why_no_device(context)

    def run(self, context: Context) -> CheckResult:
        """Ask the driver of each vendor."""
        found: list[tuple[Vendor, list[DeviceLook]]] = []
        reason = ""
        for vendor in list_vendors(context):
            looks = []
            try:
                with vendor.open() as opened:
                    for index in opened.indexes:
                        try:
                            looks.append(opened.look(index))
                        except DeviceLostError:
                            continue
                found.append((vendor, looks))
            except DriverLostError as error:
                reason = str(error)
        if not found:
            return CheckResult(name=self.name, outcome=Outcome.SKIPPED, reason=reason)
        return self.compare(found, context)

    def compare(
        self, found: Sequence[tuple[Vendor, list[DeviceLook]]], context: Context
    ) -> CheckResult:
        """Compare what the drivers tell."""
        raise NotImplementedError

    def tell(
        self, problems: Sequence[CheckProblem], facts: dict[str, str], lack: str
    ) -> CheckResult:
        """Make the result; what no driver tells of has not been checked, for lack of it."""
        if facts or problems:
            return self.make_result(problems, facts=facts)
        return CheckResult(name=self.name, outcome=Outcome.SKIPPED, reason=lack)


class Pcie(LinkCheck):
    """The width of the links of PCI Express, and packets that were repeated."""

    name = "pcie"
    codes = (_PCIE,)

    def compare(
        self, found: Sequence[tuple[Vendor, list[DeviceLook]]], context: Context
    ) -> CheckResult:
        """Compare the width with the most that device and slot can do."""
        looks = [look for _, own in found for look in own]
        problems = [
            problem
            for look in looks
            for problem in (*_judge_width(look), *_judge_replays(look, context))
        ]
        facts = {look.index: told for look in looks if (told := _describe_lanes(look))}
        return self.tell(problems, facts, "the driver does not tell the width of PCI Express")


class DeviceLinks(LinkCheck):
    """The links between devices that are up: NVLink, or XGMI."""

    name = "link"
    codes = (_LINK,)

    def compare(
        self, found: Sequence[tuple[Vendor, list[DeviceLook]]], context: Context
    ) -> CheckResult:
        """Compare the devices of a vendor with each other."""
        del context
        problems: list[CheckProblem] = []
        facts: dict[str, str] = {}
        for vendor, looks in found:
            most = max((look.links or 0 for look in looks), default=0)
            for look in looks:
                problems += _judge_links(look, most, vendor)
                if most and look.links is not None:
                    facts[look.index] = f"{look.links} links up"
        names = " or ".join(vendor.link for vendor, _ in found)
        return self.tell(problems, facts, f"the devices have no {names}, or none is up")


def _describe_lanes(look: DeviceLook) -> str:
    if look.width:
        return f"x{look.width[0]} of x{look.width[1]}"
    return "" if look.replays is None else f"{look.replays} packets repeated"


def _judge_width(look: DeviceLook) -> Iterator[CheckProblem]:
    width, most = look.width or (0, 0)
    if width < most:
        yield CheckProblem(
            code=_PCIE,
            text=f"device {look.index} has a link of PCI Express of x{width}, and could have "
            f"x{most}",
            subject=look.index,
            measures={"width": width, "threshold": most},
            details={"device": read_index(look.index)},
        )


def _judge_replays(look: DeviceLook, context: Context) -> Iterator[CheckProblem]:
    most, replays = context.policy.device.max_replays, look.replays or 0
    if replays > most:
        yield CheckProblem(
            code=_PCIE,
            text=f"device {look.index} has repeated {replays} packets of PCI Express, more than "
            f"{most}",
            subject=look.index,
            measures={"replays": replays, "threshold": most},
            details={"device": read_index(look.index)},
        )


def _judge_links(look: DeviceLook, most: int, vendor: Vendor) -> Iterator[CheckProblem]:
    if look.links is None or (look.links >= most and not look.links_down):
        return
    down = f", {look.links_down} are down" if look.links_down else f", others {most}"
    yield CheckProblem(
        code=_LINK,
        severity="error",
        text=f"device {look.index} has {look.links} links of {vendor.link} up{down}",
        subject=look.index,
        measures={"links": look.links, "threshold": max(most, look.links + look.links_down)},
        details={"device": read_index(look.index)},
    )
