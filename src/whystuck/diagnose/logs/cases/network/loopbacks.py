"""H121 where a host gave the others its loopback address: its own name leads there."""

from __future__ import annotations

import re

from whystuck.diagnose.logs.cases.network.rendezvous_lines import Answer, Told
from whystuck.evidence.ranks import name_ranks

_LOCAL = re.compile(r"local=\[(?P<local>[\d.]{7,15})\]")
_LOOP = "127."
_REMEDIES = (
    "getent ahosts $(hostname)   # on each host: none must show an address with 127",
    "export GLOO_SOCKET_IFNAME=eth0   # the interface between the hosts, until then",
)
_OWN_NAMES = {"localhost", "localhost.localdomain", "ip6-localhost"}


def find_loopback(told: Told) -> Answer | None:
    """Find that the address of a peer on another host is one that leads to the host itself."""
    peers = told.meeting.peers
    inner = {peer for peer in peers if peer.startswith(_LOOP)}
    keys = {key for peer in inner for key in peers[peer]}
    if not keys:
        return _find_fallback(told)
    if not _are_of_several_hosts(told, keys):
        return None
    nodes = tuple(sorted(_list_hosts(told)))
    nodes = nodes if len(nodes) == 1 else ()
    sayers = told.find_ranks(keys)
    rest = told.view.ranks - set(sayers)
    # Of more ranks than are seen, any may have given that address.
    size = max((file.world_size for file in told.view.files), default=0)
    is_pair = size == len(told.view.ranks) and len(rest) == 1
    ranks = tuple(rest) if is_pair else ()
    host = nodes[0] if nodes else name_ranks(ranks) if ranks else "a host"
    address = min(inner)
    return Answer(
        "loopback",
        f"{host} gave the others its loopback address ({address}), which "
        f"{name_ranks(sayers) if sayers else 'they'} cannot reach: the name of that host leads "
        "there on the host itself, mostly in /etc/hosts",
        ranks=ranks,
        nodes=nodes,
        keys=frozenset(keys),
        details={"host": address, "peers": sorted(peers)[:6]},
        remedies=_REMEDIES,
    )


def _find_fallback(told: Told) -> Answer | None:
    """Find the one host that says that it offers its loopback address, where others do not."""
    said = list(told.view.list_signatures("gloo.loopback"))
    nodes = {event.node or told.view.node_by_rank.get(event.rank, "") for event in said}
    # Only what peers on other hosts cannot reach is wrong; where all say so, they may be one host.
    others = {_shorten(host) for host in told.view.hosts} - {_shorten(host) for host in nodes}
    if len(nodes) != 1 or "" in nodes or not others or not told.meeting.failures:
        return None
    (host,) = nodes
    return Answer(
        "loopback",
        f"{host} knows no address of its own name, and gave the others its loopback address, "
        "which they cannot reach",
        nodes=(host,),
        details={"host": host, "peers": []},
        remedies=_REMEDIES,
    )


def _shorten(host: str) -> str:
    return host if host[:1].isdecimal() else host.partition(".")[0].lower()


def _are_of_several_hosts(told: Told, keys: set[int]) -> bool:
    """Tell whether who could not reach a loopback address has another address, or peers have."""
    if any(not peer.startswith((_LOOP, "localhost", "::1")) for peer in told.meeting.peers):
        return True
    found = [match for key in keys if (match := _LOCAL.search(told.get_text(key)))]
    return any(not match["local"].startswith(_LOOP) for match in found)


def _list_hosts(told: Told) -> set[str]:
    """Return the hosts of which a tool or a file shows that their names lead to themselves."""
    shown = told.view.list_signatures("hosts.loopback")
    named = {one.groups.get("host") or "" for one in shown}
    return named - _OWN_NAMES - {""}
