"""The environment of torch's flight recorder: what is set for a job, and what is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SET_BY_US_ENV = "WHYSTUCK_FR"


@dataclass(frozen=True)
class RecorderVariable:
    """One setting of the recorder.

    ``name`` is what most releases of torch read (2.9 to 2.14); ``others`` are the names of older
    and newer ones. Only one of them is ever set: torch warns about a name that it calls old. The
    probe moves the value to another name where the job's torch reads another one.
    """

    name: str
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which a user may have set it."""
        return (self.name, *self.others)


BUFFER_SIZE = RecorderVariable("TORCH_FR_BUFFER_SIZE", ("TORCH_NCCL_TRACE_BUFFER_SIZE",))
DUMP_ON_TIMEOUT = RecorderVariable("TORCH_NCCL_DUMP_ON_TIMEOUT", ("TORCH_FR_DUMP_ON_TIMEOUT",))
DUMP_TEMP_FILE = RecorderVariable("TORCH_FR_DUMP_TEMP_FILE", ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE",))
DYNAMIC_FILE_NAME = RecorderVariable("TORCH_FR_DUMP_DYNAMIC_FILE_NAME")
ENABLE_TIMING = RecorderVariable("TORCH_NCCL_ENABLE_TIMING", ("NCCL_ENABLE_TIMING",))
CPP_STACK = RecorderVariable("TORCH_FR_CPP_STACK", ("TORCH_NCCL_TRACE_CPP_STACK",))
SYMBOLIZE_MODE = RecorderVariable("TORCH_SYMBOLIZE_MODE")
INCLUDE_STACK_TRACE = RecorderVariable("TORCH_INCLUDE_STACK_TRACE")
INCLUDE_ONLY_ACTIVE = RecorderVariable("TORCH_INCLUDE_ONLY_ACTIVE")
EXTRA_DUMP_ON_EXEC = RecorderVariable("TORCH_NCCL_EXTRA_DUMP_ON_EXEC")
WAIT_TIMEOUT_DUMP = RecorderVariable(
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", ("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC",)
)
VARIABLES = (
    BUFFER_SIZE,
    DUMP_ON_TIMEOUT,
    DUMP_TEMP_FILE,
    DYNAMIC_FILE_NAME,
    ENABLE_TIMING,
    CPP_STACK,
    SYMBOLIZE_MODE,
    INCLUDE_STACK_TRACE,
    INCLUDE_ONLY_ACTIVE,
    EXTRA_DUMP_ON_EXEC,
    WAIT_TIMEOUT_DUMP,
)
# Entries of the ring buffer, of about 2 kB each. Torch's own default since 2.5.
DEFAULT_BUFFER_ENTRIES = 2000


@dataclass(frozen=True)
class RecorderSettings:
    """What the user asked for on the command line: values by ``RecorderVariable.name``."""

    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RecorderEnvironment:
    """What the job gets.

    ``variables`` are to be added to its environment; ``overruled`` are those that were asked for
    on the command line and that the environment sets already, under the name given.
    """

    variables: dict[str, str]
    overruled: tuple[str, ...]
    dump_prefix: str


def recorder_environment(
    settings: RecorderSettings, environment: Mapping[str, str], dump_prefix: str
) -> RecorderEnvironment:
    """Decide what to set for the recorder; what the environment has, by any name, stays.

    Args:
        settings: What was asked for on the command line.
        environment: The environment that the job would have without us.
        dump_prefix: Where torch's own dumps go, unless the user has said otherwise.

    Returns:
        The variables to add, and the prefix that torch will use.
    """
    wanted = {
        BUFFER_SIZE.name: str(DEFAULT_BUFFER_ENTRIES),
        DUMP_ON_TIMEOUT.name: "1",
        DUMP_TEMP_FILE.name: dump_prefix,
    } | dict(settings.values)
    taken = {
        variable.name: name
        for variable in VARIABLES
        for name in reversed(variable.names)
        if name in environment
    }
    made = {name: value for name, value in wanted.items() if name not in taken}
    overruled = tuple(taken[name] for name in settings.values if name in taken)
    prefix = environment.get(taken.get(DUMP_TEMP_FILE.name, ""), wanted[DUMP_TEMP_FILE.name])
    return RecorderEnvironment(made | {SET_BY_US_ENV: ",".join(made)}, overruled, prefix)
