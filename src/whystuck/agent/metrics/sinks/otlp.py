"""Rounds to an OpenTelemetry collector, by OTLP over HTTP."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from whystuck import __version__
from whystuck.agent.metrics.sinks.round_pace import Pace
from whystuck.agent.rpc.peers import is_loopback
from whystuck.evidence.errors import UsageError
from whystuck.evidence.nodes.metrics import MetricFamily, MetricKind, Sample

EVERY_S = 30.0
_TIMEOUT_S = 10.0
_SECRET_HEADER = re.compile("auth|token|key|secret|password|cookie|credential", re.IGNORECASE)
# Units as UCUM writes them, by the end of the name.
_UNITS = {
    "seconds": "s",
    "bytes": "By",
    "ratio": "1",
    "celsius": "Cel",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
}


class OtlpSink:
    """Exports each round, with cumulative sums for counters.

    Args:
        node: The name of this node, told as ``host.name``.
        url: Where to send: the whole URL, such as ``http://collector:4318/v1/metrics``.
        headers: Sent with each request, such as a token.
        every_s: Seconds between two exports.
        timeout_s: How long one export may take, with all its retries.
        labels: More attributes of this node.

    Raises:
        UsageError: The exporter of OpenTelemetry is not installed, the URL is none, or a secret
            would go there unencrypted.
    """

    name = "otlp"

    def __init__(
        self,
        node: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        every_s: float = EVERY_S,
        timeout_s: float = _TIMEOUT_S,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
            raise UsageError(
                f"{url} is no URL of an OTLP receiver",
                hint="give the whole URL, such as http://localhost:4318/v1/metrics",
            )
        _check_headers(url, headers or {})
        self._exporter = _make_exporter(url, dict(headers or {}), timeout_s)
        self._timeout_ms = timeout_s * 1e3
        self._pace = Pace(every_s)
        self._resource = _make_resource({**(labels or {}), "node": node, "host.name": node})

    def write(self, samples: Sequence[Sample]) -> None:
        """Export a round when one is due; raises ConnectionError when it did not arrive."""
        if not samples or not self._pace.is_due():
            return
        from opentelemetry.sdk.metrics.export import MetricExportResult

        result = self._exporter.export(self._describe(samples), self._timeout_ms)
        if result is not MetricExportResult.SUCCESS:
            raise ConnectionError("the receiver did not take a round")

    def close(self) -> None:
        """Give up what is being retried."""
        self._exporter.shutdown(timeout_millis=500)

    def _describe(self, samples: Sequence[Sample]) -> Any:  # noqa: ANN401 - has no types
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        by_name: dict[str, tuple[MetricFamily, list[Sample]]] = {}
        for sample in samples:
            by_name.setdefault(sample.family.name, (sample.family, []))[1].append(sample)
        metrics = [_make_metric(family, found) for family, found in by_name.values()]
        scope = ScopeMetrics(
            scope=InstrumentationScope("whystuck", __version__), metrics=metrics, schema_url=""
        )
        whole = ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")
        return MetricsData(resource_metrics=[whole])


def _check_headers(url: str, headers: Mapping[str, str]) -> None:
    """Raise UsageError when a secret would cross a network that others can listen to."""
    found = urlsplit(url)
    host = found.hostname or ""
    if found.scheme == "https" or host == "localhost" or is_loopback(host):
        return
    secret = next((name for name in headers if _SECRET_HEADER.search(name)), "")
    if secret or found.password:
        what = f"the header {secret}" if secret else "the password"
        raise UsageError(
            f"{what} would go to {host} unencrypted", hint="give an address with https://"
        )


def _make_exporter(url: str, headers: dict[str, str], timeout_s: float) -> Any:  # noqa: ANN401
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        raise UsageError(
            "OTLP needs the package opentelemetry-exporter-otlp-proto-http",
            hint="pip install 'whystuck[otlp]'",
        ) from None
    # It logs each try that failed; we tell what is wrong once.
    logging.getLogger("opentelemetry.exporter.otlp.proto.http").setLevel(logging.CRITICAL)
    return OTLPMetricExporter(endpoint=url, headers=headers, timeout=timeout_s)


def _make_resource(labels: Mapping[str, str]) -> Any:  # noqa: ANN401
    from opentelemetry.sdk.resources import Resource

    return Resource(
        {
            "service.name": "whystuck-agent",
            "service.version": __version__,
            **labels,
        }
    )


def _make_metric(family: MetricFamily, samples: Iterable[Sample]) -> Any:  # noqa: ANN401
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Metric,
        NumberDataPoint,
        Sum,
    )

    is_sum = family.kind is MetricKind.COUNTER
    points = [
        NumberDataPoint(
            attributes={
                name: value
                for name, value in zip(family.labels, sample.labels, strict=True)
                if value
            },
            # 0 says that nobody knows when a counter began.
            start_time_unix_nano=0,
            time_unix_nano=sample.time_ns or time.time_ns(),
            value=sample.value,
        )
        for sample in samples
    ]
    name = family.name.removesuffix("_total") if is_sum else family.name
    data = (
        Sum(
            data_points=points,
            aggregation_temporality=AggregationTemporality.CUMULATIVE,
            is_monotonic=True,
        )
        if is_sum
        else Gauge(data_points=points)
    )
    unit = _UNITS.get(name.rpartition("_")[2], "")
    return Metric(name=name, description=family.help, unit=unit, data=data)
