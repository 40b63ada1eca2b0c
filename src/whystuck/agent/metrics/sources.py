"""The sources of figures that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from whystuck.agent.config import AgentConfig, MetricsSection

if TYPE_CHECKING:
    from whystuck.agent.interfaces import Source
    from whystuck.agent.metrics.gpu.families import GpuTable, LabelsOf
    from whystuck.agent.metrics.rank.attribution import Attribution
    from whystuck.agent.metrics.rank.labels import RankBook

_VENDORS = frozenset({"nvidia", "amd", "ascend"})
Maker = Callable[[AgentConfig], "list[Source]"]


def make_attribution(config: AgentConfig) -> Attribution | None:
    """Return what tells whose a process is; raises UsageError for a label that cannot be."""
    if not config.attribution.enabled:
        return None
    from whystuck.agent.metrics.rank.attribution import Attribution

    return Attribution(config.attribution.environment)


def list_makers(metrics: MetricsSection, book: RankBook) -> dict[str, Maker]:
    """Return what makes the sources that are on, by their name in the settings.

    Each is called by itself: what it needs is imported then, and may be missing.
    """
    from whystuck.agent.metrics.gpu.families import GpuTable

    table = GpuTable()

    def labels_of(pid: int) -> tuple[str, str]:
        rank = book.find(pid)
        return rank.labels if rank else ("", "")

    makers: dict[str, Maker] = {
        "node": lambda config: _make_node(config, book),
        "processes": lambda config: _make_processes(config, book),
        "ranks": lambda config: _make_ranks(config, book),
        "perf": lambda config: _make_perf(config, book),
        "nvidia": lambda config: _make_nvidia(config, labels_of, table),
        "dcgm": lambda config: _make_dcgm(config, table),
        "amd": lambda config: _make_amd(config, labels_of),
        "ascend": lambda config: _make_ascend(config, labels_of),
    }
    return {name: make for name, make in makers.items() if _is_wanted(name, metrics)}


def _is_wanted(name: str, metrics: MetricsSection) -> bool:
    """Tell whether a source is on; one of a vendor that has no device here would only complain."""
    from whystuck.agent.metrics.gpu.families import has_device

    if not getattr(metrics.sources, name):
        return False
    if name == "dcgm":
        is_default = metrics.dcgm_url == MetricsSection().dcgm_url
        return has_device("nvidia") or not is_default
    return name not in _VENDORS or has_device(name)


def _make_node(config: AgentConfig, book: RankBook) -> list[Source]:
    from whystuck.agent.metrics.node.standard import make_node_sources

    metrics = config.metrics
    return make_node_sources(
        book.list_all,
        every_s=metrics.every_s,
        is_per_core=metrics.per_core,
        interfaces=(metrics.interfaces, metrics.skip_interfaces),
        skip_mounts=metrics.skip_mounts,
    )


def _make_processes(config: AgentConfig, book: RankBook) -> list[Source]:
    from whystuck.agent.metrics.rank.processes import ProcessSource

    return [ProcessSource(book.list_all, every_s=config.metrics.every_s)]


def _make_ranks(config: AgentConfig, book: RankBook) -> list[Source]:
    from whystuck.agent.metrics.rank.attribution import LABELS
    from whystuck.agent.metrics.rank.labels import RANK_LABELS
    from whystuck.agent.metrics.rank.progress import RankSource

    told = (*LABELS, *config.attribution.environment) if config.attribution.enabled else ()
    attributes = [one for one in told if one not in RANK_LABELS]
    return [
        RankSource(book.list_fresh, every_s=config.metrics.ranks_every_s, attributes=attributes)
    ]


def _make_perf(config: AgentConfig, book: RankBook) -> list[Source]:
    from whystuck.agent.metrics.node.perf import PerfSource

    return [PerfSource(book.list_all, every_s=config.metrics.every_s)]


def _make_nvidia(config: AgentConfig, labels_of: LabelsOf, table: GpuTable) -> list[Source]:
    from whystuck.agent.metrics.gpu.nvidia import NvidiaSource

    return [NvidiaSource(labels_of, table, every_s=config.metrics.gpu_every_s)]


def _make_dcgm(config: AgentConfig, table: GpuTable) -> list[Source]:
    from whystuck.agent.metrics.gpu.dcgm import DcgmSource

    return [DcgmSource(config.metrics.dcgm_url, table, every_s=config.metrics.gpu_every_s)]


def _make_amd(config: AgentConfig, labels_of: LabelsOf) -> list[Source]:
    from whystuck.agent.metrics.gpu.amd import AmdSource

    return [AmdSource(labels_of, every_s=config.metrics.gpu_every_s)]


def _make_ascend(config: AgentConfig, labels_of: LabelsOf) -> list[Source]:
    from whystuck.agent.metrics.gpu.ascend import ASCEND_EVERY_S, AscendSource

    return [AscendSource(labels_of, every_s=max(ASCEND_EVERY_S, config.metrics.gpu_every_s))]
