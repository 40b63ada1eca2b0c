"""What the driver (NVML) tells of the GPUs of a node's ranks, asked by a process of its own.

A device that hangs can hold up whoever asks the driver, also against SIGKILL. So that process has
a deadline, and is left behind where it does not even die.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from whystuck.collect.processes.proc_files import has_loaded, read_environment
from whystuck.collect.processes.target import Target
from whystuck.collect.programs import run_program
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.finding import Gap
from whystuck.evidence.nodes.devices import DEVICES_FILE, DeviceEntry, DevicesAnswer, DevicesRecord

WHAT = "state of the devices"
DEADLINE_S = 8.0
_MAX_BYTES = 4 << 20
_LIBRARY = b"libcuda.so"
_MODULE = "whystuck.agent.metrics.gpu.driver_query"


def collect_devices(
    targets: Sequence[Target], folder: Path, deadline_s: float = DEADLINE_S
) -> list[Gap]:
    """Ask the driver for the devices of ranks, and keep it as ``devices.json`` of the node.

    Args:
        targets: The ranks of the job on this node.
        folder: The folder of an incident.
        deadline_s: After so many seconds, no more is waited for.

    Returns:
        Why something is missing; nothing where no rank has loaded CUDA.
    """
    users = [target for target in targets if _uses_cuda(target.pid)]
    if not users:
        return []
    try:
        answer = _ask({one.pid: one.rank for one in users}, deadline_s)
        if answer.devices:
            record = DevicesRecord(
                node=users[0].node, taken_ns=time.time_ns(), devices=_choose(answer, users)
            )
            path = folder / users[0].node / DEVICES_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.encode(record))
    except subprocess.TimeoutExpired:
        return [Gap(None, WHAT, f"NVIDIA's driver did not answer in {deadline_s:g} s")]
    except OSError as error:
        return [Gap(None, WHAT, error.strerror or str(error))]
    except msgspec.MsgspecError:
        return [Gap(None, WHAT, "the process that asks NVIDIA's driver failed")]
    return [Gap(None, WHAT, answer.problem)] if answer.problem else []


def _uses_cuda(pid: int) -> bool:
    try:
        return has_loaded(pid, _LIBRARY)
    except OSError:
        return False


def _ask(rank_by_pid: Mapping[int, int], deadline_s: float) -> DevicesAnswer:
    """Return what the process prints; raises OSError, TimeoutExpired or MsgspecError."""
    # Not the working directory of the job: it may have modules of any name.
    command = [sys.executable, "-P", "-m", _MODULE, msgspec.json.encode(rank_by_pid).decode()]
    data = run_program(command, deadline_s).stdout
    return decode_json(data[:_MAX_BYTES], DevicesAnswer)


def _choose(answer: DevicesAnswer, users: Sequence[Target]) -> list[DeviceEntry]:
    """Return the devices with the ranks that use them.

    In a container, the driver may tell no process that we know. Ranks without a device by that
    get the one that their environment names.
    """
    known = {rank for one in answer.devices for rank in one.ranks}
    guessed: dict[int, list[int]] = {}
    for target in users:
        place = None if target.rank in known else _guess_place(target.pid, answer.devices)
        if place is not None:
            guessed.setdefault(place, []).append(target.rank)
    return [
        replace(one, ranks=guessed[place], is_guessed=True)
        if place in guessed and not one.ranks
        else one
        for place, one in enumerate(answer.devices)
    ]


def _guess_place(pid: int, devices: Sequence[DeviceEntry]) -> int | None:
    """Return which of the devices the environment of a rank leads to; None when nothing does."""
    try:
        environment = read_environment(pid)
    except OSError:
        return None
    local = environment.get("LOCAL_RANK", "")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else visible.split(",")
    if names is not None and len(names) == 1:
        name = names[0].strip()  # the rank sees no other
    elif not local.isdecimal():
        return None
    elif names is None:
        name = str(int(local))
    else:
        name = names[int(local)].strip() if int(local) < len(names) else ""
    for place, one in enumerate(devices):
        if name and (one.index == name or (not name.isdecimal() and one.uuid.startswith(name))):
            return place
    return None
