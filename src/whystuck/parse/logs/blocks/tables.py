"""Tables of other tools in logs, row by row; each kind has a reader of its own."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.parse.logs.blocks.batch_counts import BATCH_MARKS, CountReader
from whystuck.parse.logs.blocks.device_counts import COUNT_MARKS, DeviceCountReader
from whystuck.parse.logs.blocks.device_rows import DEVICE_MARKS, DeviceReader
from whystuck.parse.logs.blocks.exit_status import STATUS_MARKS, StatusReader
from whystuck.parse.logs.blocks.file_sizes import SIZE_MARKS, SizeReader
from whystuck.parse.logs.blocks.kernel_waits import WAIT_MARKS, WaitReader
from whystuck.parse.logs.blocks.launch_rows import LAUNCH_MARKS, LaunchReader
from whystuck.parse.logs.blocks.limit_rows import LIMIT_MARKS, LimitReader
from whystuck.parse.logs.blocks.none_left import NONE_MARKS, NoneReader
from whystuck.parse.logs.blocks.pair_rows import PAIR_MARKS, PairReader
from whystuck.parse.logs.blocks.pcie_links import PCIE_MARKS, PcieReader
from whystuck.parse.logs.blocks.ports import PORT_MARKS, PortReader
from whystuck.parse.logs.blocks.process_rows import PROCESS_MARKS, ProcessReader
from whystuck.parse.logs.blocks.rank_columns import COLUMN_MARKS, ColumnReader
from whystuck.parse.logs.blocks.rank_times import TIME_MARKS, TimeReader
from whystuck.parse.logs.blocks.rank_values import VALUE_MARKS, ValueReader
from whystuck.parse.logs.blocks.recorder_rows import RECORDER_MARKS, RecorderReader
from whystuck.parse.logs.blocks.recorder_stacks import RECORDER_STACK_MARKS, RecorderStackReader
from whystuck.parse.logs.blocks.same_rows import SAME_MARKS, SameReader
from whystuck.parse.logs.blocks.shm_rows import SHM_MARKS, ShmReader
from whystuck.parse.logs.blocks.tabled import RowReader, TabledSeen
from whystuck.parse.logs.blocks.transfer_notes import NOTE_MARKS, TransferReader
from whystuck.parse.logs.lines import LogLine

# One of them is in the first line of each table, or in each line that says something alone.
TABLE_MARKS = (
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
    *COLUMN_MARKS,
    *NOTE_MARKS,
    *BATCH_MARKS,
    *NONE_MARKS,
    *SHM_MARKS,
    *SAME_MARKS,
    *COUNT_MARKS,
    *LAUNCH_MARKS,
    *RECORDER_STACK_MARKS,
)


class TableReader:
    """Gives lines to the readers of all kinds of tables."""

    def __init__(self) -> None:
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
            ColumnReader(),
            TransferReader(),
            CountReader(),
            NoneReader(),
            ShmReader(),
            SameReader(),
            DeviceCountReader(),
            LaunchReader(),
            RecorderStackReader(),
        )

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return any(reader.is_open for reader in self._readers)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the rows that it is."""
        for reader in self._readers:
            if is_mark or reader.is_open:
                yield from reader.read(line, row, is_mark=is_mark)
