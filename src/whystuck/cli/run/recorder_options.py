"""The options of ``whystuck run`` for torch's flight recorder, under the recorder's own names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from whystuck.cli.adding import add_options
from whystuck.launch.environment import recorder
from whystuck.launch.environment.recorder import RecorderSettings, RecorderVariable

_PREFIX = "--fr-"


def _option(
    name: str,
    variable: RecorderVariable,
    text: str,
    default: str,
    **how: Any,  # noqa: ANN401 - for click
) -> tuple[RecorderVariable, str, Callable[..., Any]]:
    flag = f"{_PREFIX}{name}"
    argument = flag.lstrip("-").replace("-", "_")
    names = " or ".join(variable.names)
    help_text = f"{text} Sets {names}.  [default: {default}]"
    declared = f"{flag}/--no-{flag.lstrip('-')}" if how.pop("switch", False) else flag
    return variable, argument, click.option(declared, argument, default=None, help=help_text, **how)


_LEFT = "not set; torch's is"
_OPTIONS = (
    _option(
        "buffer-size",
        recorder.BUFFER_SIZE,
        "Collectives that the flight recorder keeps for each rank; entries of some 2 kB, not bytes."
        " 0 switches it off.",
        str(recorder.DEFAULT_BUFFER_ENTRIES),
        metavar="N",
        type=click.IntRange(min=0),
    ),
    _option(
        "dump-on-timeout",
        recorder.DUMP_ON_TIMEOUT,
        "Have NCCL write its recorder when a collective times out or fails.",
        "on",
        switch=True,
    ),
    _option(
        "dump-temp-file",
        recorder.DUMP_TEMP_FILE,
        "Where it writes; the rank is appended.",
        "in the evidence folder",
        metavar="PREFIX",
    ),
    _option(
        "dump-dynamic-file-name",
        recorder.DYNAMIC_FILE_NAME,
        "Have torch look at the prefix again at each dump.",
        f"{_LEFT} off",
        switch=True,
    ),
    _option(
        "enable-timing",
        recorder.ENABLE_TIMING,
        "Record when NCCL starts each collective, and how long it takes; costs some GPU events.",
        f"{_LEFT} off",
        switch=True,
    ),
    _option(
        "cpp-stack",
        recorder.CPP_STACK,
        "Record C++ frames too.",
        f"{_LEFT} off",
        switch=True,
    ),
    _option(
        "symbolize-mode",
        recorder.SYMBOLIZE_MODE,
        "How C++ frames get their names.",
        f"{_LEFT} dladdr, or addr2line in older releases",
        type=click.Choice(["dladdr", "addr2line", "fast"]),
    ),
    _option(
        "include-stack-trace",
        recorder.INCLUDE_STACK_TRACE,
        "Write frames into the dumps of NCCL.",
        f"{_LEFT} on",
        switch=True,
    ),
    _option(
        "include-only-active",
        recorder.INCLUDE_ONLY_ACTIVE,
        "Leave collectives that have ended out of the dumps of NCCL.",
        f"{_LEFT} off",
        switch=True,
    ),
    _option(
        "extra-dump-on-exec",
        recorder.EXTRA_DUMP_ON_EXEC,
        "Have NCCL write a dump at any exception that its watchdog sees.",
        f"{_LEFT} off",
        switch=True,
    ),
    _option(
        "wait-timeout-dump-milsec",
        recorder.WAIT_TIMEOUT_DUMP,
        "How long NCCL waits for its dump before the process ends.",
        f"{_LEFT} 15000",
        metavar="MS",
        type=click.IntRange(min=0),
    ),
)


def recorder_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add these options to a command, which gets them as the argument ``recorder``."""

    @functools.wraps(command)
    def with_recorder(*args: Any, **kwargs: Any) -> int:  # noqa: ANN401 - the command's own
        values = {}
        for variable, argument, _ in _OPTIONS:
            value = kwargs.pop(argument)
            if value is not None:
                values[variable.name] = str(int(value)) if isinstance(value, bool) else str(value)
        return command(*args, recorder=RecorderSettings(values), **kwargs)

    return add_options(with_recorder, [add for _, _, add in _OPTIONS])
