"""The part that reads figures and passes them on, and takes traces by the rules for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from whystuck.agent.config import AgentConfig
from whystuck.agent.parts import Core, Part
from whystuck.evidence.errors import WhystuckError

if TYPE_CHECKING:
    from whystuck.agent.interfaces import Sink, Source
    from whystuck.agent.metrics.collector import Collector
    from whystuck.agent.metrics.node.own import OwnSource
    from whystuck.agent.metrics.sinks.prometheus import PrometheusSink
    from whystuck.agent.triggers.engine import TriggerEngine
    from whystuck.agent.triggers.rules import TriggerRule
    from whystuck.evidence.agent import ProcessEntry

_LOGGER = logging.getLogger(__name__)
_STOP_S = 2.0
_OF_RULES = frozenset({"ranks", "nvidia", "dcgm", "amd", "ascend"})
"""Sources of the figures that rules for traces go by."""
_Made = TypeVar("_Made")


class Metrics(Part):
    """Reads all sources as long as somebody wants their figures."""

    name = "metrics"
    sections = ("metrics", "attribution", "trigger")
    asked_by = (
        "metrics.prometheus.port",
        "metrics.prometheus.host",
        "metrics.otlp.url",
        "metrics.json_lines.path",
    )

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._collector: Collector | None = None
        self._triggers: TriggerEngine | None = None
        self._prometheus: PrometheusSink | None = None
        self._processes: tuple[ProcessEntry, ...] = ()
        self._looker: asyncio.TimerHandle | None = None

    async def start(self, config: AgentConfig) -> None:
        """Make sinks and sources; those that do not work are told of, and left out."""
        sinks = self._make_sinks(config)
        if not sinks:
            return
        from whystuck.agent.metrics.collector import Collector

        metrics = config.metrics
        # Nobody else wants figures: those that rules do not go by are not read.
        is_for_rules = all(sink is self._triggers for sink in sinks)
        sources, own = self._make_sources(config, _OF_RULES if is_for_rules else None)
        round_s = min(metrics.every_s, metrics.ranks_every_s)
        collector = Collector(sources, sinks, round_s=round_s, max_series=metrics.max_series)
        if own is not None:
            own.watch(collector)
        self._collector = collector
        self._look(metrics.ranks_every_s)
        collector.set_pace(self.core.pace)
        self.core.on_pace = collector.set_pace
        collector.start()

    def _look(self, every_s: float) -> None:
        """Note who is there: sources read that in threads, and the registry lives on the loop."""
        self._processes = tuple(self.core.registry.list_all())
        self._looker = asyncio.get_running_loop().call_later(every_s, self._look, every_s)

    async def stop(self) -> None:
        """Pass on what is left."""
        if self._looker:
            self._looker.cancel()
        collector, self._collector = self._collector, None
        triggers, self._triggers = self._triggers, None
        self.core.metrics_port = 0
        self._prometheus = None
        if collector:
            await asyncio.to_thread(collector.stop, _STOP_S)
        if triggers:
            await triggers.stop()

    def check(self, config: AgentConfig) -> None:
        """Raise UsageError when a rule for traces cannot be read."""
        _read_rules(config)

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counts of connections to the port of metrics."""
        sink = self._prometheus
        return {"metrics": msgspec.to_builtins(sink.connections.counts)} if sink else {}

    def problems(self) -> Mapping[str, str]:
        """Return what is wrong with sources and sinks."""
        found = self._collector.problems() if self._collector else {}
        return {f"metrics of {name}": problem for name, problem in found.items()}

    # ------------------------------------------------------------------------------- sinks

    def _make_sinks(self, config: AgentConfig) -> list[Sink]:
        makers: list[tuple[str, Callable[[AgentConfig], Sink | None]]] = [
            ("metrics.prometheus", self._make_prometheus),
            ("metrics.otlp", self._make_otlp),
            ("metrics.json_lines", self._make_json_lines),
            ("trigger", self._make_triggers),
        ]
        found = [self._try(name, make, config) for name, make in makers]
        return [one for one in found if one is not None]

    def _try(
        self, name: str, make: Callable[[AgentConfig], _Made | None], config: AgentConfig
    ) -> _Made | None:
        """Make one; its failure is that of the agent only where an option asked for it."""
        try:
            made = make(config)
        except WhystuckError as error:
            if any(key.startswith(name) for key in self.core.launch.options):
                raise
            _LOGGER.warning("%s is off: %s; hint: %s", name, error.message, error.hint)
            self.core.missing[name] = error.message
            return None
        except Exception as error:
            _LOGGER.exception("%s is off", name)
            self.core.missing[name] = f"{type(error).__name__}: {error}"
            return None
        self.core.missing.pop(name, None)
        return made

    def _make_prometheus(self, config: AgentConfig) -> Sink | None:
        wanted = config.metrics.prometheus
        if not wanted.port:
            return None
        from whystuck.agent.metrics.sinks.prometheus import PrometheusSink
        from whystuck.agent.serving import make_auth

        sink = PrometheusSink(
            self.core.node,
            wanted.port,
            address=wanted.host,
            auth=make_auth(wanted),
            labels=config.attribution.labels,
        )
        self.core.metrics_port = wanted.port
        self._prometheus = sink
        return sink

    def _make_otlp(self, config: AgentConfig) -> Sink | None:
        wanted = config.metrics.otlp
        if not wanted.url:
            return None
        from whystuck.agent.metrics.sinks.otlp import OtlpSink

        return OtlpSink(
            self.core.node,
            wanted.url,
            headers=wanted.headers,
            every_s=config.metrics.every_s,
            labels=config.attribution.labels,
        )

    def _make_json_lines(self, config: AgentConfig) -> Sink | None:
        wanted = config.metrics.json_lines
        if not wanted.path:
            return None
        from whystuck.agent.metrics.sinks.jsonlines import JsonLinesSink

        return JsonLinesSink(
            self.core.node,
            Path(wanted.path),
            every_s=config.metrics.every_s,
            max_bytes=wanted.max_bytes // 2,
            keep=1,
            labels=config.attribution.labels,
        )

    def _make_triggers(self, config: AgentConfig) -> Sink | None:
        rules = _read_rules(config)
        if not rules:
            return None
        from whystuck.agent.triggers.engine import TriggerEngine

        self._triggers = TriggerEngine(
            rules,
            self.core.tracer,
            self.core.folder,
            node=self.core.node,
            job_dir=self.core.launch.job_dir,
            serves=lambda pid: any(one.pid == pid for one in self._processes),
        )
        return self._triggers

    def _make_sources(
        self, config: AgentConfig, only: frozenset[str] | None
    ) -> tuple[list[Source], OwnSource | None]:
        from whystuck.agent.metrics.node.own import OwnSource
        from whystuck.agent.metrics.rank.beat_files import BeatFiles
        from whystuck.agent.metrics.rank.labels import RankBook
        from whystuck.agent.metrics.sources import list_makers, make_attribution

        attribution = self._try("attribution", make_attribution, config)
        job_dir = self.core.launch.job_dir
        # The agent of one job has no say in others.
        beats = BeatFiles(Path(job_dir)) if job_dir else None
        book = RankBook(lambda: self._processes, beats, attribution)
        sources: list[Source] = []
        for name, make in list_makers(config.metrics, book).items():
            if only is None or name in only:
                sources += self._try(f"metrics.sources.{name}", make, config) or []
        if not config.metrics.sources.own or only is not None:
            return sources, None
        own = OwnSource(self.core.count, every_s=config.metrics.every_s)
        return [*sources, own], own


def _read_rules(config: AgentConfig) -> tuple[TriggerRule, ...]:
    if not config.trigger:
        return ()
    from whystuck.agent.triggers.rules import parse_rules

    return parse_rules(config.trigger)
