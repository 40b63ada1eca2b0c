"""Whether what NCCL and gloo are told to use is there, before a job finds out by hanging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from whystuck.collect.node.interfaces import Interface, collect_interfaces, try_loading
from whystuck.evidence.errors import UsageError
from whystuck.launch.environment.nccl import (
    GLOO_IFNAME,
    NET_PLUGIN,
    SOCKET_IFNAME,
    NcclOptions,
    list_plugin_files,
    match_interfaces,
)

# NCCL passes over a value of a single letter.
_MIN_VALUE = 2


def check_nccl_options(options: NcclOptions) -> None:
    """Raise UsageError when the command line names an interface or plugin that is not here."""
    if options.socket_ifname:
        found = collect_interfaces()
        problem = find_interface_problem(options.socket_ifname, found)
        if len(options.socket_ifname) < _MIN_VALUE:
            problem = "NCCL passes over a value of a single letter"
        if problem:
            raise UsageError(f"`--nccl-socket-ifname`: {problem}", hint=list_usable(found))
    if options.net_plugin:
        problem = _find_plugin_problem(options.net_plugin)
        if problem:
            raise UsageError(
                f"`--nccl-net-plugin`: {problem}",
                hint="`none` stands for NCCL's own transports; the folder of a plugin must be in "
                "LD_LIBRARY_PATH",
            )


def list_warnings(environment: Mapping[str, str], options: NcclOptions) -> Iterator[str]:
    """Yield what is wrong with variables that the environment has, one sentence each.

    Args:
        environment: The environment of the job.
        options: What the command line asks for, which takes their place.

    Yields:
        Sentences; the job is started all the same, as only one that uses them would fail.
    """
    value = environment.get(SOCKET_IFNAME, "")
    gloo = environment.get(GLOO_IFNAME, "")
    is_read = len(value) >= _MIN_VALUE and not options.socket_ifname
    if is_read or gloo:
        found = collect_interfaces()
        if is_read and (problem := find_interface_problem(value, found)):
            yield f"{SOCKET_IFNAME}={value}: {problem}; {list_usable(found)}"
        if gloo and (problem := find_gloo_problem(gloo, found)):
            yield f"{GLOO_IFNAME}={gloo}: {problem}; {list_usable(found)}"
    plugin = environment.get(NET_PLUGIN, "")
    if plugin and not options.net_plugin and (problem := _find_plugin_problem(plugin)):
        yield f"{NET_PLUGIN}={plugin}: {problem}"


def find_interface_problem(value: str, found: Sequence[Interface]) -> str:
    """Tell what is wrong with a value of NCCL_SOCKET_IFNAME on this node; empty when nothing is."""
    if not found:
        return ""  # the system does not tell
    by_name = {one.name: one for one in found}
    chosen = match_interfaces(value, by_name)
    if not chosen:
        return f"no network interface of this node fits `{value}`"
    if any(by_name[name].is_usable for name in chosen):
        return ""
    return _say_unusable([by_name[name] for name in chosen])


def find_gloo_problem(value: str, found: Sequence[Interface]) -> str:
    """Tell what is wrong with a value of GLOO_SOCKET_IFNAME, which holds whole names."""
    by_name = {one.name: one for one in found}
    for name in filter(None, value.split(",")):
        if by_name and name not in by_name:
            return f"this node has no network interface `{name}`"
        if by_name and not by_name[name].is_usable:
            return _say_unusable([by_name[name]])
    return ""


def list_usable(found: Sequence[Interface]) -> str:
    """Name the interfaces that are up, with an address of each."""
    usable = [f"{one.name} ({one.addresses[0]})" for one in found if one.is_usable]
    return f"up here: {', '.join(usable)}" if usable else "no interface of this node is up"


def _say_unusable(interfaces: Sequence[Interface]) -> str:
    down = [one.name for one in interfaces if not one.is_up]
    if down:
        return f"`{down[0]}` is down"
    return f"`{interfaces[0].name}` has no IP address"


def _find_plugin_problem(value: str) -> str:
    names = list_plugin_files(value)
    reason = try_loading(names) if names else None
    return "" if reason is None else f"no plugin `{value}` can be loaded: {reason}"
