"""Tables of other tools in logs, row by row; each kind has a reader of its own."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.parse.logs.blocks.counter_rows import COUNTER_MARKS, CounterReader
from whystuck.parse.logs.blocks.device_rows import DEVICE_MARKS, DeviceReader
from whystuck.parse.logs.blocks.device_tables import CLOCK_MARKS, DeviceTableReader
from whystuck.parse.logs.blocks.exit_status import STATUS_MARKS, StatusReader
from whystuck.parse.logs.blocks.file_sizes import SIZE_MARKS, SizeReader
from whystuck.parse.logs.blocks.host_times import HOST_MARKS, HostTimeReader
from whystuck.parse.logs.blocks.kernel_waits import WAIT_MARKS, WaitReader
from whystuck.parse.logs.blocks.limit_rows import LIMIT_MARKS, LimitReader
from whystuck.parse.logs.blocks.pair_matrix import MATRIX_MARKS, MatrixReader
from whystuck.parse.logs.blocks.pair_rows import PAIR_MARKS, PairReader
from whystuck.parse.logs.blocks.pcie_links import PCIE_MARKS, PcieReader
from whystuck.parse.logs.blocks.ports import PORT_MARKS, PortReader
from whystuck.parse.logs.blocks.power_rows import POWER_MARKS, PowerReader
from whystuck.parse.logs.blocks.process_rows import PROCESS_MARKS, ProcessReader
from whystuck.parse.logs.blocks.rank_formulas import FORMULA_MARKS, FormulaReader
from whystuck.parse.logs.blocks.rank_tables import RANK_MARKS, Above, RankTableReader
from whystuck.parse.logs.blocks.rank_times import TIME_MARKS, TimeReader
from whystuck.parse.logs.blocks.rank_values import VALUE_MARKS, ValueReader
from whystuck.parse.logs.blocks.ras_groups import GROUP_MARKS, GroupReader
from whystuck.parse.logs.blocks.recorder_rows import RECORDER_MARKS, RecorderReader
from whystuck.parse.logs.blocks.storage_rows import STORAGE_MARKS, StorageReader
from whystuck.parse.logs.blocks.tabled import RowReader, TabledSeen
from whystuck.parse.logs.blocks.work_cells import WORK_MARKS, WorkReader
from whystuck.parse.logs.lines import LogLine

# One of them is in the first line of each table, or in each line that says something alone.
TABLE_MARKS = (
    *RANK_MARKS,
    *MATRIX_MARKS,
    *CLOCK_MARKS,
    *TIME_MARKS,
    *DEVICE_MARKS,
    *PROCESS_MARKS,
    *WAIT_MARKS,
    *PORT_MARKS,
    *PCIE_MARKS,
    *RECORDER_MARKS,
    *PAIR_MARKS,
    *VALUE_MARKS,
    *LIMIT_MARKS,
    *SIZE_MARKS,
    *STATUS_MARKS,
    *POWER_MARKS,
    *STORAGE_MARKS,
    *GROUP_MARKS,
    *HOST_MARKS,
    *FORMULA_MARKS,
    *COUNTER_MARKS,
    *WORK_MARKS,
)


class TableReader:
    """Gives lines to the readers of all kinds of tables."""

    def __init__(self) -> None:
        self._ranks = RankTableReader()
        self._wide = (MatrixReader(), DeviceTableReader())
        self._readers: tuple[RowReader, ...] = (
            TimeReader(),
            DeviceReader(),
            ProcessReader(),
            WaitReader(),
            PortReader(),
            PcieReader(),
            RecorderReader(),
            PairReader(),
            ValueReader(),
            LimitReader(),
            SizeReader(),
            StatusReader(),
            PowerReader(),
            StorageReader(),
            GroupReader(),
            HostTimeReader(),
            FormulaReader(),
            CounterReader(),
            WorkReader(),
        )

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        is_wide = self._ranks.is_open or any(reader.is_open for reader in self._wide)
        return is_wide or any(reader.is_open for reader in self._readers)

    def read(
        self, line: LogLine, raw: str, row: int, above: Above, *, is_mark: bool
    ) -> Iterator[TabledSeen]:
        """Take a line; yield the rows that it is.

        Args:
            line: The line.
            raw: The same with what stands before it.
            row: Its number.
            above: Returns the lines above it, the nearest first.
            is_mark: Whether it may begin a table.
        """
        if is_mark or self._ranks.is_open:
            yield from self._ranks.read_row(line, raw, row, above, is_mark=is_mark)
        for wide in self._wide:
            if is_mark or wide.is_open:
                yield from wide.read_row(line, raw, row, is_mark=is_mark)
        for reader in self._readers:
            if is_mark or reader.is_open:
                yield from reader.read(line, row, is_mark=is_mark)
