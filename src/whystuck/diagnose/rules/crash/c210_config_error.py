"""C210 config-error."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.logs.log_rule import LogRule


class ConfigErrorRule(LogRule):
    """The environment, the command line or the set-up of a machine is wrong; no rank is to blame.

    ## What it means

    The job could not start, or a part of it: a module or library is missing, an argument is
    unknown, a port is in use, a variable is not set, a driver does not fit, or a limit is too low.
    What ranks report after it (time limits, lost connections) follows from it.

    ## How it is found

    What programs print about it, as the error that ended a process: the last line of a traceback, a
    usage error, a warning of NCCL or a line of the kernel. The same words in the middle of a line
    of output tell of something that was survived, and are left out. A host is named where it
    alone has the trouble, a rank where others got past it. Of launchers that start ranks over ssh
    (mpirun, pdsh, Hydra), the host is named on which they could start nothing. A file that is not
    there, or may not be used, is configuration when all ranks say so, and C204 when some do.

    A transport that is asked for and is not there (libfabric, UCX, Open MPI, NCCL), a step of Slurm
    or an actor of Ray that waits for resources, a device that lets nobody in, and a port on which
    HCCL cannot listen are told as well.

    In `details`: `kind` is one of module, library, library-version, argument, script, command,
    port, environment, shared-memory, limits, driver, device, build, interface, fork,
    placement, launcher, resources, transport, device-taken, file, permission, or the class of a
    signature of your own; `words` are the names in the message.

    ## False alarms

    A program that prints such an error, goes on, and fails later for a reason that leaves no
    trace.

    ## What to do

    Correct what is named; the remedies are commands to paste. `whystuck check` finds most of these
    before a job starts.
    """

    code = codes.CONFIG_ERROR
    name = "config-error"
    end_class = "configuration"
    remedies: ClassVar[tuple[str, ...]] = (
        "correct it on all nodes alike; one process on one node is enough to see most of these",
    )
