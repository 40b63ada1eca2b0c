"""H123 device-stalled."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.rule_kinds import SuspectRule


class DeviceStalled(SuspectRule):
    """The device of a rank does not finish an op that its peers completed.

    ## What it means

    Peers can only be past a collective when every member gave its part. What this rank's device
    still has to do is its own: it hangs, is throttled, lost its link, or a kernel before the op
    does not end. The host goes on and queues more ops behind it.

    ## How it is found

    The oldest op of the rank that is not over, in the order of the device's queue, is over for
    other members of the group: by their rows, or by the counters of their recorder. Ops with
    one giver or one taker (broadcast, reduce, gather, scatter) are left out, as some ranks are
    past them early. With `TORCH_NCCL_ENABLE_TIMING`, the recorder also tells what has started:
    a device that has not started an op which all have issued, and its peers have started, is
    `likely`.

    In a log: a kernel stack (`/proc/PID/stack`) that is in a call of the driver of a device, and
    does not run: `likely` where the state is told, too (`D`). `details.driver` names it.
    Printed entries of flight recorders tell what dumps do, where all others wait in a later op.

    ## False alarms

    Dumps of a running job, when that of this rank was taken much earlier than those of its peers.

    ## What to do

    Look at the device: `nvidia-smi`, its Xid errors in the kernel log, its clocks and links.
    """

    code = codes.DEVICE_STALLED
    name = "device-stalled"
    shows_ops = True
    remedies: ClassVar[tuple[str, ...]] = (
        "look at the device of this rank: `nvidia-smi -q`, Xid lines in `dmesg`, its links",
        "when the device is sound, look for a kernel of your own before the op that does not end",
        "take the node out and start again from the last checkpoint",
    )
