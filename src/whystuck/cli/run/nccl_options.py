"""The options of ``whystuck run`` for NCCL: its own lines, its interface, its plugin."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from whystuck.cli.adding import add_options
from whystuck.evidence.errors import UsageError
from whystuck.launch.environment.nccl import SUBSYSTEMS, NcclOptions, find_unknown_subsystem

_OPTIONS = (
    click.option(
        "--nccl-debug",
        "debug",
        metavar="[SUBSYS]",
        is_flag=False,
        flag_value="",
        default=None,
        help="Have NCCL tell what it does, in files of the evidence folder and not on the console: "
        "NCCL_DEBUG=INFO. SUBSYS are parts of NCCL such as INIT,NET (NCCL_DEBUG_SUBSYS); put `--` "
        "before the command when there are none. It costs speed.",
    ),
    click.option(
        "--nccl-socket-ifname",
        "socket_ifname",
        metavar="NAME",
        default="",
        help="The network interface for NCCL, as NCCL_SOCKET_IFNAME takes it: beginnings of names; "
        "`=` before them for whole names, `^` for all others. It must be up on this node.",
    ),
    click.option(
        "--nccl-net-plugin",
        "net_plugin",
        metavar="none|NAME",
        default="",
        help="The network plugin of NCCL (NCCL_NET_PLUGIN), which must be there; `none` leaves "
        "plugins of the image out.",
    ),
)


def nccl_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add these options to a command, which gets them as the argument ``nccl``."""

    @functools.wraps(command)
    def with_nccl(
        *args: Any,  # noqa: ANN401 - the command's own
        debug: str | None,
        socket_ifname: str,
        net_plugin: str,
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> int:
        if debug:
            _check_subsystems(debug)
        options = NcclOptions(debug, socket_ifname, net_plugin)
        return command(*args, nccl=options, **kwargs)

    return add_options(with_nccl, _OPTIONS)


def _check_subsystems(text: str) -> None:
    unknown = find_unknown_subsystem(text)
    if unknown:
        raise UsageError(
            f"`{unknown}` is no part of NCCL that `--nccl-debug` could ask for",
            hint=f"it has {', '.join(SUBSYSTEMS)}; put `--` before the command",
        )
