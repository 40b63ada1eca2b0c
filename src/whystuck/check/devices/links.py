"""How devices are connected: PCI Express (N415) and NVLink (N416)."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.check.check import Check, Context
from whystuck.check.devices.nvidia import Opened, open_devices, why_no_device
from whystuck.collect.node.nvidia_driver import DeviceLostError, DriverLostError
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome

_PCIE, _NVLINK = "N415", "N416"


class _LinkCheck(Check):
    """A check of links: a device that is lost has none, and is told by another check."""

    def why_skipped(self, context: Context) -> str:
        """Return why there is nothing to check."""
        return why_no_device(context)

    def run(self, context: Context) -> CheckResult:
        """Ask the driver."""
        try:
            with open_devices() as opened:
                return self.look(opened, context)
        except DriverLostError as error:
            outcome = Outcome.SKIPPED
            return CheckResult(name=self.name, outcome=outcome, reason=str(error))

    def look(self, opened: Opened, context: Context) -> CheckResult:
        """Compare what the driver tells."""
        raise NotImplementedError


class Pcie(_LinkCheck):
    """The width of the links of PCI Express, and packets that were repeated."""

    name = "pcie"
    codes = (_PCIE,)

    def look(self, opened: Opened, context: Context) -> CheckResult:
        """Compare the width with the most that device and slot can do."""
        facts: dict[str, str] = {}
        problems: list[CheckProblem] = []
        for index in opened.handles:
            width = _ask(opened, index, "nvmlDeviceGetCurrPcieLinkWidth")
            most = _ask(opened, index, "nvmlDeviceGetMaxPcieLinkWidth")
            replays = _ask(opened, index, "nvmlDeviceGetPcieReplayCounter")
            if width is not None and most is not None:
                facts[str(index)] = f"x{width} of x{most}"
                problems += _judge_width(index, width, most)
            problems += _judge_replays(index, replays or 0, context)
        return self.make_result(problems, facts=facts)


class NvLink(_LinkCheck):
    """The links of NVLink that are up, on each device."""

    name = "link"
    codes = (_NVLINK,)

    def look(self, opened: Opened, context: Context) -> CheckResult:
        """Compare the devices with each other."""
        del context
        counts: dict[int, int] = {}
        for index in opened.handles:
            try:
                counts[index] = opened.count_links(index)
            except DeviceLostError:
                continue
        most = max(counts.values(), default=0)
        problems = [
            CheckProblem(
                code=_NVLINK,
                severity="error",
                text=f"device {index} has {count} links of NVLink up, others {most}",
                subject=str(index),
                measures={"links": count, "threshold": most},
                details={"device": index},
            )
            for index, count in counts.items()
            if count < most
        ]
        facts = {str(index): f"{count} links up" for index, count in counts.items() if most}
        reason = "" if most else "the devices have no NVLink, or none is up"
        return self.make_result(problems, facts=facts, reason=reason)


def _ask(opened: Opened, index: int, call: str) -> int | None:
    try:
        told = opened.ask(index, call)
    except DeviceLostError:
        return None
    return None if told is None else int(told)


def _judge_width(index: int, width: int, most: int) -> Iterator[CheckProblem]:
    if width < most:
        yield CheckProblem(
            code=_PCIE,
            text=f"device {index} has a link of PCI Express of x{width}, and could have x{most}",
            subject=str(index),
            measures={"width": width, "threshold": most},
            details={"device": index},
        )


def _judge_replays(index: int, replays: int, context: Context) -> Iterator[CheckProblem]:
    most = context.policy.device.max_replays
    if replays > most:
        yield CheckProblem(
            code=_PCIE,
            text=f"device {index} has repeated {replays} packets of PCI Express, more than {most}",
            subject=str(index),
            measures={"replays": replays, "threshold": most},
            details={"device": index},
        )
