"""H121 where the network cards of two hosts cannot be connected, as NCCL prints it."""

from __future__ import annotations

import re

from whystuck.diagnose.logs.cases.network.rendezvous_lines import Answer, Told

_GIDS = re.compile(
    r"Call to ibv_modify_qp failed with (?:error )?(?P<error>[^,]{1,60}).{0,200}?"
    r"local GID (?P<own>[0-9a-fA-F:.]{3,45}), remote GID (?P<peer>[0-9a-fA-F:.]{3,45})"
)
# How an address of IPv4 stands in a GID.
_MAPPED = "::ffff:"


def find_card_pair(told: Told) -> Answer | None:
    """Find that a queue pair between two addresses could not be made: no packet gets across."""
    found = {
        key: match for key in told.meeting.failures if (match := _GIDS.search(told.get_text(key)))
    }
    if not found:
        return None
    match = found[min(found)]
    own, peer = (match[name].removeprefix(_MAPPED) for name in ("own", "peer"))
    return Answer(
        "cards",
        f"the network cards {own} and {peer} could not be connected "
        f"({match['error'].strip()}): packets of RDMA do not get from one to the other",
        keys=frozenset(found),
        details={"cards": [own, peer]},
        remedies=(
            f"ping -c3 -I {own} {peer}   # on the host of the first: is there a way at all?",
            "show_gids   # on both: NCCL_IB_GID_INDEX must name addresses of networks that meet",
            "ibv_rc_pingpong -d DEVICE -g INDEX   # between both, without NCCL",
        ),
    )
