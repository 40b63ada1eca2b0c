"""Numbers that torch prints inside its lines are ranks of the job in the group of all alone."""

from __future__ import annotations

import pytest
from tests.parse.logs.jobs import read_files

_WORK = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
_OLD = "[E ProcessGroupNCCL.cpp:828] [Rank {rank}] " + _WORK
_NEW = "[E1120 10:00:00.123456789 ProcessGroupNCCL.cpp:616] [Rank {rank}] " + _WORK
_STATUS = (
    "[E1120 10:00:00.123456789 ProcessGroupNCCL.cpp:2268] [PG ID {id} PG GUID {name} Rank {rank}]  "
    "failure detected by watchdog at work sequence id: 411 PG status: last enqueued work: 412, "
    "last completed work: 410"
)


def find_ranks(*lines: str, name: str = "a.log") -> list[int]:
    table = read_files({name: "\n".join(lines) + "\n"})
    return [event.rank for event in table.logs.events]


@pytest.mark.parametrize("form", [_OLD, _NEW], ids=["2.0", "2.7"])
def test_number_inside_is_a_rank_where_nothing_shows_another_group(form: str) -> None:
    lines = [form.format(rank=rank, seq=411) for rank in range(3)]

    assert find_ranks(*lines) == [0, 1, 2]


def test_number_inside_is_no_rank_where_a_line_names_another_group() -> None:
    lines = [_NEW.format(rank=rank, seq=411) for rank in range(2)]

    assert find_ranks(*lines, _STATUS.format(id=3, name="7(tp)", rank=1)) == [-1, -1, -1]


def test_number_inside_is_no_rank_where_it_waits_in_two_groups() -> None:
    lines = [_OLD.format(rank=0, seq=411), _OLD.format(rank=0, seq=9), _OLD.format(rank=1, seq=9)]

    assert find_ranks(*lines) == [-1, -1, -1]


@pytest.mark.parametrize("name", ["0(default_pg)", "0", "0(undefined)"])
def test_number_in_the_group_of_all_is_a_rank(name: str) -> None:
    status = _STATUS.format(id=0, name=name, rank=6)

    assert find_ranks(status) == [6]


def test_prefixes_and_names_of_files_go_before_it() -> None:
    line = _NEW.format(rank=0, seq=411)

    assert find_ranks(f"[rank5]:{line}") == [5]
    assert find_ranks(f"5: {line}", f"7: {line}") == [5, 7]
    assert find_ranks(line, name="rank6.log") == [6]


def test_what_programs_print_of_themselves_is_a_rank() -> None:
    assert find_ranks(
        "[Rank 3] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    ) == [3]
