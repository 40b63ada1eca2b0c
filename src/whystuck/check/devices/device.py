"""Devices that are missing, broken, held back, or in use by somebody else (N411 to N414)."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.check.check import Check, Context
from whystuck.check.devices.nvidia import Opened, count_nodes, open_devices, why_no_device
from whystuck.collect.node.nvidia_driver import DeviceLostError, DriverLostError
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome

_MISSING, _ERRORS, _THROTTLED, _BUSY = "N411", "N412", "N413", "N414"
_MIB = 1 << 20
# By the numbers of nvmlDeviceGpuRecoveryAction_t.
_ACTIONS = {
    1: ("a reset", "nvidia-smi --gpu-reset -i {index}   # no process may use it"),
    2: ("a restart of the node", "drain the node, and restart it"),
    3: ("an end of peer-to-peer traffic", "end all jobs on this node, then reset the device"),
    4: ("an end of all work, and a reset", "end all jobs on this node, then reset the device"),
}
# Of nvmlClocksEventReasons: idle clocks, clocks that were set and the power cap are no trouble.
_REASONS = {
    0x08: "a slowdown by the hardware",
    0x20: "the driver's limit of heat",
    0x40: "the hardware's limit of heat",
    0x80: "the power supply (power brake)",
}


class Device(Check):
    """Number, errors, clocks and users of the devices of NVIDIA."""

    name = "device"
    codes = (_MISSING, _ERRORS, _THROTTLED, _BUSY)

    def why_skipped(self, context: Context) -> str:
        """Return why there is nothing to check."""
        return why_no_device(context)

    def run(self, context: Context) -> CheckResult:
        """Ask the driver."""
        try:
            with open_devices() as opened:
                return self._look(opened, context)
        except DriverLostError as error:
            if "not installed" in str(error):
                outcome = Outcome.SKIPPED
                return CheckResult(name=self.name, outcome=outcome, reason=str(error))
            return self.make_result([_make_driver_problem(str(error), context)])

    def make_late_result(self, context: Context, deadline_s: float) -> CheckResult:
        """Return what it means that the driver does not answer: that a device is broken."""
        del context
        problem = CheckProblem(
            code=_ERRORS,
            severity="error",
            text=f"NVIDIA's driver does not answer within {deadline_s:g} s",
            remedies=("`dmesg -T | grep -i -e xid -e nvrm`; restart the node",),
            measures={"threshold_s": deadline_s},
            details={"reason": "no answer"},
        )
        return CheckResult(name=self.name, outcome=Outcome.FAILED, problems=(problem,))

    def _look(self, opened: Opened, context: Context) -> CheckResult:
        problems = list(_judge_count(opened, context))
        facts: dict[str, str] = {}
        for index in opened.handles:
            try:
                facts[str(index)] = _describe(index, opened)
                problems += _judge_device(index, opened, context)
            except DeviceLostError as error:
                problems.append(_make_lost(index, str(error)))
        figures = {"devices": float(len(opened.handles))}
        reason = "; ".join(opened.driver.problems)
        return self.make_result(problems, facts=facts, figures=figures, reason=reason)


def _describe(index: int, opened: Opened) -> str:
    memory = opened.ask(index, "nvmlDeviceGetMemoryInfo")
    name = opened.ask(index, "nvmlDeviceGetName") or "a device of NVIDIA"
    return f"{name}, {memory.total / 1e9:.0f} GB" if memory is not None else str(name)


def _judge_count(opened: Opened, context: Context) -> Iterator[CheckProblem]:
    yield from (_make_lost(index, text) for index, text in opened.lost.items())
    wanted = context.policy.device.count
    nodes = count_nodes(context)
    count, expected = len(opened.handles) + len(opened.lost), wanted or nodes
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


def _make_lost(index: int, text: str) -> CheckProblem:
    return CheckProblem(
        code=_MISSING,
        severity="error",
        text=f"device {index} is lost: {text}",
        subject=str(index),
        details={"device": index},
    )


def _make_driver_problem(text: str, context: Context) -> CheckProblem:
    """Tell of a driver that cannot be asked; in a container it may just not be given."""
    is_wanted = bool(context.policy.device.count or count_nodes(context))
    return CheckProblem(
        code=_MISSING,
        severity="error" if is_wanted else "warning",
        confidence="certain" if is_wanted else "possible",
        text=f"this node has devices of NVIDIA, and {text}",
        remedies=(
            "`nvidia-smi`, `lsmod | grep nvidia`: load or install the driver",
            "start the container with `--gpus all`",
        ),
    )


def _judge_device(index: int, opened: Opened, context: Context) -> Iterator[CheckProblem]:
    yield from _judge_recovery(index, opened)
    yield from _judge_memory(index, opened)
    yield from _judge_clocks(index, opened, context)
    yield from _judge_users(index, opened, context)


def _judge_recovery(index: int, opened: Opened) -> Iterator[CheckProblem]:
    number = getattr(opened.driver.nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    action = opened.ask_field(index, number) if number is not None else None
    if not action:
        return
    what, remedy = _ACTIONS.get(action, (f"recovery action {action}", "restart the node"))
    yield CheckProblem(
        code=_ERRORS,
        severity="error",
        text=f"the driver of device {index} asks for {what}",
        subject=str(index),
        because=("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",),
        remedies=(remedy.format(index=index),),
        details={"device": index, "action": action},
    )


def _judge_memory(index: int, opened: Opened) -> Iterator[CheckProblem]:
    nvml = opened.driver.nvml
    kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    count = opened.ask(index, "nvmlDeviceGetTotalEccErrors", kind, counter)
    if count:
        yield CheckProblem(
            code=_ERRORS,
            severity="error",
            text=f"device {index} had {count} errors of memory that were not corrected",
            subject=str(index),
            because=("counted since the driver was loaded",),
            measures={"errors": count, "threshold": 0},
            details={"device": index},
        )
    rows = opened.ask(index, "nvmlDeviceGetRemappedRows")
    if rows is None:
        return
    _, uncorrected, is_pending, has_failed = rows
    if has_failed or is_pending:
        state = "could not be" if has_failed else "wait for a reset to be"
        yield CheckProblem(
            code=_ERRORS,
            severity="error" if has_failed else "warning",
            text=f"rows of the memory of device {index} {state} remapped",
            subject=str(index),
            because=(f"{uncorrected} rows were remapped for errors that were not corrected",),
            remedies=(
                ("have the device replaced",)
                if has_failed
                else (f"nvidia-smi --gpu-reset -i {index}   # no process may use it",)
            ),
            details={"device": index},
        )


def _judge_clocks(index: int, opened: Opened, context: Context) -> Iterator[CheckProblem]:
    bits = opened.ask(index, "nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:  # the name it had in older drivers
        bits = opened.ask(index, "nvmlDeviceGetCurrentClocksThrottleReasons")
    reasons = [text for bit, text in _REASONS.items() if (bits or 0) & bit]
    heat = opened.ask(index, "nvmlDeviceGetTemperature", opened.driver.nvml.NVML_TEMPERATURE_GPU)
    most = context.policy.device.max_temperature_c
    if heat is not None and heat > most:
        reasons.append(f"{heat} °C, above {most}")
    if reasons:
        yield CheckProblem(
            code=_THROTTLED,
            text=f"device {index} is held back by {', '.join(reasons)}",
            subject=str(index),
            measures={"temperature_c": heat} if heat is not None else {},
            details={"device": index, "reasons": reasons},
        )


def _judge_users(index: int, opened: Opened, context: Context) -> Iterator[CheckProblem]:
    most = context.policy.device.max_foreign_mib
    for user in opened.ask(index, "nvmlDeviceGetComputeRunningProcesses") or ():
        used = (user.usedGpuMemory or 0) / _MIB
        if used <= most:
            continue
        name = context.read_text(f"/proc/{user.pid}/comm") or "of another container"
        yield CheckProblem(
            code=_BUSY,
            text=f"process {user.pid} ({name}) holds {used:.0f} MiB of device {index}, more than "
            f"{most}",
            subject=str(index),
            remedies=(f"end it where it is left over: kill {user.pid}", "or take another device"),
            measures={"used_mib": used, "threshold_mib": most},
            details={"device": index, "pid": user.pid},
        )
