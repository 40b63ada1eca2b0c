"""The environment of NCCL: what ``whystuck run`` sets when asked to, and how NCCL reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

DEBUG = "NCCL_DEBUG"
DEBUG_SUBSYS = "NCCL_DEBUG_SUBSYS"
DEBUG_FILE = "NCCL_DEBUG_FILE"
SOCKET_IFNAME = "NCCL_SOCKET_IFNAME"
NET_PLUGIN = "NCCL_NET_PLUGIN"
GLOO_IFNAME = "GLOO_SOCKET_IFNAME"

# The parts of NCCL that NCCL_DEBUG_SUBSYS names, as of 2.30; older ones pass over newer names.
SUBSYSTEMS = (
    "INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL",
    "PROXY", "NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL",
)  # fmt: skip
NO_PLUGIN = "none"
# In the library itself.
_STATIC_PLUGIN = "STATIC_PLUGIN"


@dataclass(frozen=True)
class NcclOptions:
    """What was asked for on the command line.

    ``debug`` is None when NCCL's lines are not wanted, and else the parts of NCCL that they are
    wanted of, empty for those that NCCL itself chooses.
    """

    debug: str | None = None
    socket_ifname: str = ""
    net_plugin: str = ""


@dataclass(frozen=True)
class NcclEnvironment:
    """What the job gets: variables, and the names of those that take the place of other values."""

    variables: dict[str, str]
    replaced: tuple[str, ...] = ()


def nccl_environment(
    options: NcclOptions, environment: Mapping[str, str], folder: Path
) -> NcclEnvironment:
    """Decide what to set for NCCL; nothing that was not asked for.

    Args:
        options: What was asked for.
        environment: The environment that the job would have without us.
        folder: Where NCCL's lines go, a file for each process.

    Returns:
        The variables to add.
    """
    wanted: dict[str, str] = {}
    if options.debug is not None:
        # TRACE holds INFO; a library that was built with it was asked for it.
        is_more = environment.get(DEBUG, "").upper() == "TRACE"
        wanted[DEBUG] = environment[DEBUG] if is_more else "INFO"
        wanted[DEBUG_FILE] = make_file_pattern(folder)
        if options.debug:
            wanted[DEBUG_SUBSYS] = options.debug
    if options.socket_ifname:
        wanted[SOCKET_IFNAME] = options.socket_ifname
    if options.net_plugin:
        wanted[NET_PLUGIN] = options.net_plugin
    replaced = (
        name for name, value in wanted.items() if environment.get(name, value) not in (value, "")
    )
    return NcclEnvironment(wanted, tuple(replaced))


def make_file_pattern(folder: Path) -> str:
    """Return the value of NCCL_DEBUG_FILE for files such as ``HOST.PID.txt`` in a folder."""
    return f"{str(folder).replace('%', '%%')}/%h.%p.txt"


def find_unknown_subsystem(text: str) -> str:
    """Return the first name in a value of NCCL_DEBUG_SUBSYS that NCCL does not have, or nothing."""
    for name in text.removeprefix("^").split(","):
        if name.strip().upper() not in SUBSYSTEMS:
            return name
    return ""


def match_interfaces(value: str, names: Iterable[str]) -> list[str]:
    """Choose interfaces as NCCL does.

    Args:
        value: Of NCCL_SOCKET_IFNAME: beginnings of names with commas between them; ``=`` before
            them asks for whole names, ``^`` for all others; a port may follow each after a colon.
        names: The interfaces of this node.

    Returns:
        Those that it chooses, in their order.
    """
    is_inverse = value.startswith("^")
    rest = value.removeprefix("^")
    is_exact = rest.startswith("=")
    wanted = [part.partition(":")[0] for part in rest.removeprefix("=").split(",") if part]

    def fits(name: str) -> bool:
        return any(name == one if is_exact else name.startswith(one) for one in wanted)

    return [name for name in names if fits(name) is not is_inverse]


def list_plugin_files(name: str) -> list[str]:
    """Return the libraries that NCCL tries for a value of NCCL_NET_PLUGIN, in its order.

    Returns:
        Names for the dynamic linker; none when NCCL would not look for a file.
    """
    found = []
    for one in filter(None, name.split(",")):
        if one.lower() == NO_PLUGIN or one.upper() == _STATIC_PLUGIN:
            return []
        found.append(one)
        if "/" not in one and not (one.startswith("lib") and one.endswith(".so")):
            found.append(f"libnccl-net-{one}.so")
    return found
