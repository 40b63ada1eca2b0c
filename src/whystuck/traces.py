"""Traces in Python: read them, look at the findings, and work with the tables.

    from whystuck import traces

    analysis = traces.analyze("./traces")
    analysis.report.findings
    analysis.tables["kernels"].to_pandas()

In a notebook, an analysis and a table show themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Gap, Report
from whystuck.evidence.table import Column, Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankHeader, TraceSummary
from whystuck.pipeline import analyze_traces, list_trace_tables
from whystuck.read.traces.engines import choose_engine
from whystuck.read.traces.plan import Progress, ReadPlan
from whystuck.report import KEPT_WIDTH
from whystuck.report.notebook import render_table
from whystuck.report.text import render_text

__all__ = ["Analysis", "TraceTable", "TraceTables", "analyze"]


class TraceTable:
    """A table of figures: columns of one length, in numpy.

    Times are whole nanoseconds (names end in ``_ns``), sizes bytes. What is unknown is -1, NaN or
    an empty text.
    """

    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self.columns: Mapping[str, Column] = dict(table.columns)

    def __len__(self) -> int:
        return next((len(column) for column in self.columns.values()), 0)

    def __getitem__(self, column: str) -> Column:
        """Return a column."""
        return self.columns[column]

    def __repr__(self) -> str:
        return f"<table {self.name}: {len(self)} rows, columns {', '.join(self.columns)}>"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield rows as dictionaries of Python values; for few rows only."""
        values = zip(*(column.tolist() for column in self.columns.values()), strict=True)
        return (dict(zip(self.columns, row, strict=True)) for row in values)

    def to_pandas(self) -> Any:  # noqa: ANN401 - an optional module
        """Return a data frame of pandas.

        Raises:
            UsageError: pandas is not installed.
        """
        return _import("pandas").DataFrame(dict(self.columns))

    def to_polars(self) -> Any:  # noqa: ANN401 - an optional module
        """Return a data frame of polars.

        Raises:
            UsageError: polars is not installed.
        """
        polars = _import("polars")
        return polars.DataFrame(
            {
                name: polars.Series(name, column.tolist(), dtype=polars.String)
                if column.dtype == object
                else column
                for name, column in self.columns.items()
            }
        )

    def _repr_html_(self) -> str:
        """Show the first rows in a notebook."""
        return render_table(self.name, Table(dict(self.columns)))


class TraceTables(Mapping[str, TraceTable]):
    """The tables of an analysis, by name."""

    def __init__(self, summary: TraceSummary) -> None:
        self._tables = summary.tables

    def __getitem__(self, name: str) -> TraceTable:
        """Return a table.

        Raises:
            KeyError: There is no such table, or it has to be asked for.
        """
        if name in self._tables:
            return TraceTable(name, self._tables[name])
        if name in list_trace_tables():
            raise KeyError(f"table {name} was not made: analyze(..., tables=[{name!r}]) makes it")
        raise KeyError(f"there is no table {name}; there are {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._tables))

    def __len__(self) -> int:
        return len(self._tables)

    def __repr__(self) -> str:
        return f"<tables {', '.join(self)}>"


@dataclass(frozen=True, repr=False)
class Analysis:
    """What traces of a job tell.

    Attributes:
        report: The findings, as in the JSON of ``whystuck trace analyze``.
        tables: The figures that they rest on.
        ranks: Whose traces were read.
        gaps: What could not be read, and why.
    """

    report: Report
    tables: TraceTables
    ranks: tuple[RankHeader, ...]
    gaps: tuple[Gap, ...]

    def __repr__(self) -> str:
        """Return the text that the command prints."""
        return render_text(self.report, color=False, width=KEPT_WIDTH)

    def _repr_html_(self) -> str:
        """Show the same in a notebook."""
        return f"<pre>{escape(repr(self))}</pre>"


def analyze(  # noqa: PLR0913 - one for each option of the command
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tables: Sequence[str] = (),
    all_steps: bool = False,
    comm_patterns: Sequence[str] = (),
    rank_from: str = "auto",
    duplicates: str = "newest",
    engine: str = "local",
    memory: str = "",
    workers: int = 0,
    partials: str = "",
    progress: Progress | None = None,
) -> Analysis:
    """Read the traces of a job, and say where its time goes.

    Args:
        paths: A trace, a folder of them, a URL, or several of these.
        tables: Tables to make beside the default ones, e.g. ``launches``, and to hold.
        all_steps: Whether the last profiler step is taken in.
        comm_patterns: Regular expressions of kernels that communicate, beside those known.
        rank_from: ``auto``, ``trace``, ``name`` or ``order``: where ranks are told.
        duplicates: ``newest`` or ``longest``: which of several traces of a rank counts.
        engine: ``local``, or ``dask://HOST:PORT``.
        memory: What local processes may take together, such as ``8G``.
        workers: How many local processes; as many as there are cores when 0.
        partials: A folder or URL that keeps what each file was reduced to.
        progress: Called with the number of files that are read, and of all.

    Returns:
        The analysis.

    Raises:
        UsageError: A path holds no trace that can be read, or an argument cannot be used.
    """
    _check_tables(tables)
    places = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    plan = ReadPlan(
        options=TraceOptions(
            all_steps=all_steps, comm_patterns=tuple(comm_patterns), tables=tuple(tables)
        ),
        engine=choose_engine(engine, memory, workers),
        partials=partials,
        rank_from=rank_from,
        duplicates=duplicates,
        keep_rows=bool(tables),
    )
    report, read = analyze_traces([os.fspath(one) for one in places], plan, progress=progress)
    return Analysis(report, TraceTables(read.summary), read.summary.ranks, tuple(read.gaps))


def _check_tables(names: Sequence[str]) -> None:
    known = list_trace_tables()
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise UsageError(f"there is no table `{unknown[0]}`", hint=f"there are {', '.join(known)}")


def _import(name: str) -> Any:  # noqa: ANN401 - an optional module
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as problem:
        raise UsageError(
            f"this needs {name}, which is not installed", hint=f"`pip install {name}`"
        ) from problem
