"""N422 p2p-blocked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import tell_problems
from whystuck.diagnose.context.nccl_facts import NcclFacts, cite_lines
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.nccl_rule import NcclRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Confidence, Finding


class PeerToPeerBlocked(NcclRule):
    """Devices of one host do not reach each other directly.

    ## What it means

    Data between them goes through the memory of the host, several times slower. With ACS or an
    IOMMU between them, direct access may also hang or corrupt data, which is why it is off.

    ## How it is found

    NCCL says that P2P is disabled between two devices, or that a variable disabled it.
    `details.pairs` are the devices, `details.setting` the variable. Or a kernel log has faults of
    the IOMMU (`DMAR: [DMA Write] Request device`, `AMD-Vi: Event logged [IO_PAGE_FAULT`): the
    `details.devices` are theirs. Or `lspci -vvv` shows ACS with redirection (`ReqRedir+`) on a
    host whose first collectives did not end. These two are taken as why ranks wait. So is a job
    that stands still once NCCL is up (`via P2P/`), where who pasted its log shows or says that it
    runs with `NCCL_P2P_DISABLE=1`. Or CUDA refuses
    it to a process (`peer access is not supported between these two devices`).

    The check `p2p` asks the driver of NVIDIA or AMD for each pair of devices. It tells of access
    that a setting of the driver switches off, and of a device that reaches no other where others
    do. It does not look for ACS, which only root can read.

    ## False alarms

    Devices that cannot do it: consumer cards, or two sockets without NVLink, where one device is
    alone behind its socket.

    ## What to do

    Look at `nvidia-smi topo -p2p r`. On bare metal switch ACS off; unset `NCCL_P2P_DISABLE` when
    nobody remembers why it is set.
    """

    code = codes.P2P_BLOCKED
    needs: ClassVar[tuple[str, ...]] = ("logs", "checks")
    name = "p2p-blocked"
    remedies: ClassVar[tuple[str, ...]] = (
        "nvidia-smi topo -p2p r; nvidia-smi topo -m   # on that host",
        "sudo lspci -vvv | grep -i acsctl   # SrcValid+ on a bridge between devices: ACS is on",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks find, and what machines tell of refusals, else what NCCL tells."""
        yield from tell_problems(self, scene)
        cases = scene.story.of(self.code)
        yield from (tell_case(self, case) for case in cases)
        if not cases:
            yield from super().check(scene, policy)

    def look(self, facts: NcclFacts, scene: Scene) -> Iterator[Finding]:
        """Yield a finding where NCCL tells that P2P is off."""
        del scene
        disabled = facts.get_setting("NCCL_P2P_DISABLE")
        setting = "NCCL_P2P_DISABLE" if disabled not in {"", "0"} else ""
        events = facts.blocked or facts.settings.get((setting, disabled), [])
        if not events:
            return
        pairs = sorted({_find_pair(event.groups) for event in facts.blocked} - {""})
        nodes = sorted({teller.node for teller in facts.find_tellers(events)} - {""})
        where = f" on {' and '.join(nodes)}" if 0 < len(nodes) < len(facts.nodes) else ""
        what = f"between devices {', '.join(pairs[:4])}" if pairs else f"by {setting}={disabled}"
        yield self.make_finding(
            f"direct access between devices is off{where}: {what}",
            Confidence.LIKELY,
            Blame(nodes=nodes if where else ()),
            because=cite_lines(events),
            details={"pairs": pairs, "setting": setting},
        )


def _find_pair(groups: Mapping[str, str]) -> str:
    """Write the devices of a line as ``0-1``; empty where it names only one."""
    one, other = groups.get("a") or "", groups.get("b") or ""
    return f"{one}-{other}" if one and other else ""
