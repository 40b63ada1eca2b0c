"""Devices that are missing, broken, held back, or in use by somebody else (N411 to N414)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

from whystuck.check.check import Check, Context
from whystuck.check.devices.look import DeviceLook, Devices, Vendor
from whystuck.check.devices.vendors import list_vendors, list_vendors_by_files, why_no_device
from whystuck.collect.node.nvidia_driver import DeviceLostError, DriverLostError
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome

_MISSING, _ERRORS, _THROTTLED, _BUSY = "N411", "N412", "N413", "N414"
_NOT_INSTALLED = "not installed"


class Device(Check):
    """Number, errors, clocks and users of the devices, as their driver tells."""

    name = "device"
    codes = (_MISSING, _ERRORS, _THROTTLED, _BUSY)

    def why_skipped(self, context: Context) -> str:
        """Return why there is nothing to check."""
        return why_no_device(context)

    def run(self, context: Context) -> CheckResult:
        """Ask the driver of each vendor."""
        problems: list[CheckProblem] = []
        facts: dict[str, str] = {}
        reasons: list[str] = []
        count, is_asked = 0, False
        for vendor in list_vendors(context):
            try:
                with vendor.open() as opened:
                    is_asked = True
                    count += len(opened.indexes)
                    problems += _judge_all(vendor, opened, context, facts)
                    reasons.append(opened.problem)
            except DriverLostError as error:
                if _NOT_INSTALLED in str(error):
                    reasons.append(str(error))
                else:
                    is_asked = True
                    problems.append(_make_driver_problem(vendor, str(error), context))
        reason = "; ".join(filter(None, reasons))
        if not is_asked:
            return CheckResult(name=self.name, outcome=Outcome.SKIPPED, reason=reason)
        figures = {"devices": float(count)}
        return self.make_result(problems, facts=facts, figures=figures, reason=reason)

    def make_late_result(self, context: Context, deadline_s: float) -> CheckResult:
        """Return what it means that the driver does not answer: that a device is broken."""
        vendors = list_vendors_by_files(context)
        problem = CheckProblem(
            code=_ERRORS,
            severity="error",
            text=f"{vendors[0].driver} does not answer within {deadline_s:g} s",
            remedies=vendors[0].late_remedies,
            measures={"threshold_s": deadline_s},
            details={"reason": "no answer"},
        )
        return CheckResult(name=self.name, outcome=Outcome.FAILED, problems=(problem,))


def _judge_all(
    vendor: Vendor, opened: Devices, context: Context, facts: dict[str, str]
) -> Iterator[CheckProblem]:
    yield from _judge_count(vendor, opened, context)
    for index in opened.indexes:
        try:
            look = opened.look(index)
        except DeviceLostError as error:
            yield _make_lost(index, str(error))
        else:
            facts[index] = _describe(look)
            yield from _judge_device(look, context)


def _describe(look: DeviceLook) -> str:
    return look.name + (f", {look.memory_bytes / 1e9:.0f} GB" if look.memory_bytes else "")


def _judge_count(vendor: Vendor, opened: Devices, context: Context) -> Iterator[CheckProblem]:
    yield from (_make_lost(index, text) for index, text in opened.lost.items())
    wanted = context.policy.device.count
    nodes = vendor.count_files(context)
    count, expected = len(opened.indexes) + len(opened.lost), wanted or nodes
    if count >= expected:
        return
    why = "the policy says so" if wanted else f"there are {nodes} device files in /dev"
    yield CheckProblem(
        code=_MISSING,
        severity="error",
        text=f"{expected - count} of {expected} devices are missing: the driver tells {count}",
        because=(why,),
        measures={"devices": count, "threshold": expected},
    )


def _make_lost(index: str, text: str) -> CheckProblem:
    return CheckProblem(
        code=_MISSING,
        severity="error",
        text=f"device {index} is lost: {text}",
        subject=index,
        details={"device": read_index(index)},
    )


def read_index(index: str) -> int | str:
    """Return the number of a device, or its name where it has more than one."""
    return int(index) if index.isdecimal() else index


def _make_driver_problem(vendor: Vendor, text: str, context: Context) -> CheckProblem:
    """Tell of a driver that cannot be asked; in a container it may just not be given."""
    is_wanted = bool(context.policy.device.count or vendor.count_files(context))
    return CheckProblem(
        code=_MISSING,
        severity="error" if is_wanted else "warning",
        confidence="certain" if is_wanted else "possible",
        text=f"this node has devices of {vendor.name}, and {text}",
        remedies=vendor.missing_remedies,
    )


def _judge_device(look: DeviceLook, context: Context) -> Iterator[CheckProblem]:
    device = {"device": read_index(look.index)}
    for trouble in look.troubles:
        yield CheckProblem(
            code=_ERRORS,
            severity=cast("Literal['error', 'warning']", trouble.severity),
            text=trouble.text,
            subject=look.index,
            because=trouble.because,
            remedies=trouble.remedies,
            measures=dict(trouble.measures),
            details=device | dict(trouble.details),
        )
    yield from _judge_clocks(look, context)
    yield from _judge_users(look, context)


def _judge_clocks(look: DeviceLook, context: Context) -> Iterator[CheckProblem]:
    reasons, most = list(look.held_back), context.policy.device.max_temperature_c
    if look.heat_c is not None and look.heat_c > most:
        reasons.append(f"{look.heat_c:g} °C, above {most}")
    if reasons:
        yield CheckProblem(
            code=_THROTTLED,
            text=f"device {look.index} is held back by {', '.join(reasons)}",
            subject=look.index,
            measures={"temperature_c": look.heat_c} if look.heat_c is not None else {},
            details={"device": read_index(look.index), "reasons": reasons},
        )


def _judge_users(look: DeviceLook, context: Context) -> Iterator[CheckProblem]:
    most = context.policy.device.max_foreign_mib
    for user in look.users:
        if user.used_mib <= most:
            continue
        name = context.read_text(f"/proc/{user.pid}/comm") or "of another container"
        yield CheckProblem(
            code=_BUSY,
            text=f"process {user.pid} ({name}) holds {user.used_mib:.0f} MiB of device "
            f"{look.index}, more than {most}",
            subject=look.index,
            remedies=(f"end it where it is left over: kill {user.pid}", "or take another device"),
            measures={"used_mib": user.used_mib, "threshold_mib": most},
            details={"device": read_index(look.index), "pid": user.pid},
        )
