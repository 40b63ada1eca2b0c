"""Tables of other tools in logs, row by row; each kind has a reader of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from whystuck.parse.logs.blocks.calls.rank_columns import COLUMN_MARKS, ColumnReader
from whystuck.parse.logs.blocks.calls.ras_groups import GROUP_MARKS, GroupReader
from whystuck.parse.logs.blocks.calls.recompiled_steps import (
    RECOMPILE_MARKS,
    RecompiledStepReader,
)
from whystuck.parse.logs.blocks.calls.recorder_rows import RECORDER_MARKS, RecorderReader
from whystuck.parse.logs.blocks.calls.recorder_sizes import RANK_SIZE_MARKS, RankSizeReader
from whystuck.parse.logs.blocks.calls.recorder_stacks import (
    RECORDER_STACK_MARKS,
    RecorderStackReader,
)
from whystuck.parse.logs.blocks.calls.same_rows import SAME_MARKS, SameReader
from whystuck.parse.logs.blocks.calls.split_lists import SPLIT_MARKS, SplitReader
from whystuck.parse.logs.blocks.calls.state_columns import STATE_MARKS, StateReader
from whystuck.parse.logs.blocks.calls.transfer_notes import NOTE_MARKS, TransferReader
from whystuck.parse.logs.blocks.exit_status import STATUS_MARKS, StatusReader
from whystuck.parse.logs.blocks.launch_rows import LAUNCH_MARKS, LaunchReader
from whystuck.parse.logs.blocks.machines.counter_rows import COUNTER_MARKS, CounterReader
from whystuck.parse.logs.blocks.machines.device_counts import COUNT_MARKS, DeviceCountReader
from whystuck.parse.logs.blocks.machines.device_rows import DEVICE_MARKS, DeviceReader
from whystuck.parse.logs.blocks.machines.device_tables import CLOCK_MARKS, DeviceTableReader
from whystuck.parse.logs.blocks.machines.disk_rows import DISK_MARKS, DiskReader
from whystuck.parse.logs.blocks.machines.file_sizes import SIZE_MARKS, SizeReader
from whystuck.parse.logs.blocks.machines.host_times import HOST_MARKS, HostTimeReader
from whystuck.parse.logs.blocks.machines.limit_rows import LIMIT_MARKS, LimitReader
from whystuck.parse.logs.blocks.machines.pcie_links import PCIE_MARKS, PcieReader
from whystuck.parse.logs.blocks.machines.pod_hosts import POD_HOST_MARKS, PodHostReader
from whystuck.parse.logs.blocks.machines.power_rows import POWER_MARKS, PowerReader
from whystuck.parse.logs.blocks.machines.service_rows import SERVICE_MARKS, ServiceReader
from whystuck.parse.logs.blocks.machines.shm_rows import SHM_MARKS, ShmReader
from whystuck.parse.logs.blocks.machines.storage_rows import STORAGE_MARKS, StorageReader
from whystuck.parse.logs.blocks.network.interfaces import INTERFACE_MARKS, InterfaceReader
from whystuck.parse.logs.blocks.network.npu_links import NPU_LINK_MARKS, NpuLinkReader
from whystuck.parse.logs.blocks.network.pair_matrix import MATRIX_MARKS, MatrixReader
from whystuck.parse.logs.blocks.network.pair_rows import PAIR_MARKS, PairReader
from whystuck.parse.logs.blocks.network.pair_tests import PAIR_TEST_MARKS, PairTestReader
from whystuck.parse.logs.blocks.network.path_rows import (
    PING_MARKS,
    SOCKET_MARKS,
    PingReader,
    SocketReader,
)
from whystuck.parse.logs.blocks.network.port_counters import ERROR_MARKS, PortErrorReader
from whystuck.parse.logs.blocks.network.ports import PORT_MARKS, PortReader
from whystuck.parse.logs.blocks.network.sum_tests import SUM_TEST_MARKS, SumTestReader
from whystuck.parse.logs.blocks.rank_tables.rank_counts import COUNT_MARKS as CALL_MARKS
from whystuck.parse.logs.blocks.rank_tables.rank_counts import CountReader
from whystuck.parse.logs.blocks.rank_tables.rank_formulas import FORMULA_MARKS, FormulaReader
from whystuck.parse.logs.blocks.rank_tables.rank_sums import SUM_MARKS, SumReader
from whystuck.parse.logs.blocks.rank_tables.rank_tables import RANK_MARKS, Above, RankTableReader
from whystuck.parse.logs.blocks.rank_tables.rank_times import TIME_MARKS, TimeReader
from whystuck.parse.logs.blocks.rank_tables.rank_values import VALUE_MARKS, ValueReader
from whystuck.parse.logs.blocks.stacks.kernel_waits import WAIT_MARKS, WaitReader
from whystuck.parse.logs.blocks.stacks.process_rows import PROCESS_MARKS, ProcessReader
from whystuck.parse.logs.blocks.tables.batch_counts import BATCH_MARKS, BatchReader
from whystuck.parse.logs.blocks.tables.copy_rows import COPY_MARKS, CopyReader
from whystuck.parse.logs.blocks.tables.kernel_shares import KERNEL_MARKS, KernelReader
from whystuck.parse.logs.blocks.tables.none_left import NONE_MARKS, NoneReader
from whystuck.parse.logs.blocks.tables.profiles import PROFILE_MARKS, ProfileReader
from whystuck.parse.logs.blocks.tables.slowest_rows import SLOWEST_MARKS, SlowestReader
from whystuck.parse.logs.blocks.tables.tabled import RowReader, TabledSeen
from whystuck.parse.logs.blocks.tables.work_cells import WORK_MARKS, WorkReader
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.search.patterns import MIN_LITERAL

# Each reader, with the texts of which one is in the first line of each of its tables, or in each
# line that says something alone.
_READERS: tuple[tuple[tuple[bytes, ...], Callable[[], RowReader]], ...] = (
    (TIME_MARKS, TimeReader),
    (DEVICE_MARKS, DeviceReader),
    (PROCESS_MARKS, ProcessReader),
    (WAIT_MARKS, WaitReader),
    (PORT_MARKS, PortReader),
    (INTERFACE_MARKS, InterfaceReader),
    (POD_HOST_MARKS, PodHostReader),
    (NPU_LINK_MARKS, NpuLinkReader),
    (PCIE_MARKS, PcieReader),
    (ERROR_MARKS, PortErrorReader),
    (RECORDER_MARKS, RecorderReader),
    (PAIR_MARKS, PairReader),
    (PAIR_TEST_MARKS, PairTestReader),
    (SUM_TEST_MARKS, SumTestReader),
    (VALUE_MARKS, ValueReader),
    (CALL_MARKS, CountReader),
    (LIMIT_MARKS, LimitReader),
    (SIZE_MARKS, SizeReader),
    (STATUS_MARKS, StatusReader),
    (SERVICE_MARKS, ServiceReader),
    (SHM_MARKS, ShmReader),
    (DISK_MARKS, DiskReader),
    (SAME_MARKS, SameReader),
    (COUNT_MARKS, DeviceCountReader),
    (LAUNCH_MARKS, LaunchReader),
    (RECORDER_STACK_MARKS, RecorderStackReader),
    (RANK_SIZE_MARKS, RankSizeReader),
    (FORMULA_MARKS, FormulaReader),
    (COUNTER_MARKS, CounterReader),
    (COLUMN_MARKS, ColumnReader),
    (STATE_MARKS, StateReader),
    (NOTE_MARKS, TransferReader),
    (BATCH_MARKS, BatchReader),
    (NONE_MARKS, NoneReader),
    (WORK_MARKS, WorkReader),
    (POWER_MARKS, PowerReader),
    (STORAGE_MARKS, StorageReader),
    (GROUP_MARKS, GroupReader),
    (HOST_MARKS, HostTimeReader),
    (SPLIT_MARKS, SplitReader),
    (KERNEL_MARKS, KernelReader),
    (PROFILE_MARKS, ProfileReader),
    (COPY_MARKS, CopyReader),
    (PING_MARKS, PingReader),
    (SOCKET_MARKS, SocketReader),
    (SUM_MARKS, SumReader),
    (RECOMPILE_MARKS, RecompiledStepReader),
)
# Those that take a line with what stands before it, as its first cells look like a prefix.
_WIDE_READERS = (
    (MATRIX_MARKS, MatrixReader),
    (CLOCK_MARKS, DeviceTableReader),
    (SLOWEST_MARKS, SlowestReader),
)
TABLE_MARKS = (
    *RANK_MARKS,
    *(mark for marks, _ in _WIDE_READERS for mark in marks),
    *(mark for marks, _ in _READERS for mark in marks),
)


# The marks by their first four bytes, each with the number of its reader: to look at all bytes of a
# line takes a twentieth of the time that it takes to look for 1,700 marks.
_OF_RANKS = 0
_FIRST_WIDE = 1
_FIRST = _FIRST_WIDE + len(_WIDE_READERS)
_BYTES = MIN_LITERAL


def _sort_marks() -> dict[bytes, list[tuple[bytes, int]]]:
    marks = (RANK_MARKS, *(marks for marks, _ in _WIDE_READERS), *(marks for marks, _ in _READERS))
    found: dict[bytes, list[tuple[bytes, int]]] = {}
    for number, texts in enumerate(marks):
        for text in texts:
            found.setdefault(text[:_BYTES], []).append((text, number))
    return found


_BY_BYTES = _sort_marks()


def _find_readers(data: bytes) -> set[int]:
    """Return the numbers of the readers of which a mark stands in a line."""
    found = set[int]()
    for start in range(len(data) - _BYTES + 1):
        for mark, number in _BY_BYTES.get(data[start : start + _BYTES], ()):
            if data.startswith(mark, start):
                found.add(number)
    return found


class TableReader:
    """Gives lines to the readers of all kinds of tables."""

    def __init__(self) -> None:
        self._ranks = RankTableReader()
        self._wide = tuple(make() for _, make in _WIDE_READERS)
        self._readers = tuple(make() for _, make in _READERS)
        # Whether the next lines may be rows. To ask all readers before each line that is looked at
        # would take a fifth of the time of a log.
        self.is_open = False

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
        begun = _find_readers(raw.encode()) if is_mark else set[int]()
        if begun or self.is_open:
            yield from self._read(line, raw, row, above, begun)
            readers = (self._ranks, *self._wide, *self._readers)
            self.is_open = any(reader.is_open for reader in readers)

    def _read(
        self, line: LogLine, raw: str, row: int, above: Above, begun: set[int]
    ) -> Iterator[TabledSeen]:
        """Give a line to those readers of which it has a mark, or which are open."""
        if (begins := _OF_RANKS in begun) or self._ranks.is_open:
            yield from self._ranks.read_row(line, raw, row, above, is_mark=begins)
        for number, wide in enumerate(self._wide, _FIRST_WIDE):
            if (begins := number in begun) or wide.is_open:
                yield from wide.read_row(line, raw, row, is_mark=begins)
        for number, reader in enumerate(self._readers, _FIRST):
            if (begins := number in begun) or reader.is_open:
                yield from reader.read(line, row, is_mark=begins)
