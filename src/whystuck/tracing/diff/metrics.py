"""The tables that a comparison needs of each trace."""

from __future__ import annotations

from whystuck.tracing.diff.items import ITEMS, STEPS
from whystuck.tracing.diff.nodes import NODES
from whystuck.tracing.diff.shares import SHARES
from whystuck.tracing.metric import Metric

DIFF_METRICS: tuple[Metric, ...] = (STEPS, ITEMS, SHARES, NODES)
DIFF_TABLES = tuple(one.name for one in DIFF_METRICS)
