"""H126 device-not-bound."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.logs.log_rule import LogRule


class DeviceNotBound(LogRule):
    """Several ranks use one device, as none was chosen by the local rank.

    ## What it means

    Each process must take a device of its own before the process group is made. Without that all
    take device 0: NCCL refuses it, or the job hangs or runs out of device memory.

    ## How it is found

    `Duplicate GPU detected` of NCCL, with the ranks and the device. Where ranks wait or lost a peer
    and nothing else tells, ranks of one host whose bus ids are the same, or for which torch says
    that it guesses one device, are named as possible.

    Where `nvidia-smi` shows three or more processes of one program, all on one device, and another
    device that nobody uses, it is `likely`; which ranks they are is not known.

    In `details`: `kind` is duplicate, crowded or guessed; `shared` maps host and device to the
    ranks on it, or to the processes.

    ## False alarms

    A launcher that shows each process one device of its own, as device 0: then the guess of torch
    is right, and the finding is only possible.

    ## What to do

    Call `torch.cuda.set_device(LOCAL_RANK)` first thing, or pass `device_id` to
    `init_process_group`.
    """

    code = codes.DEVICE_NOT_BOUND
    name = "device-not-bound"
    end_class = "configuration"
    remedies: ClassVar[tuple[str, ...]] = (
        "dist.init_process_group('nccl', device_id=torch.device('cuda', local_rank))",
    )
