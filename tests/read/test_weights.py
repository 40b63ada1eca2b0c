"""What asks for much is refused or cut, and told; the rest of the evidence is still read."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.parse.dumps.builders import as_pickle, make_dump, make_entry

from whystuck.diagnose.algorithms.stacks.stack_tree import merge_stacks
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.dumps.fast.vocabulary import Vocabulary
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.compiled import LogTables
from whystuck.parse.logs.reader import LogReader
from whystuck.parse.records import parse_exception, parse_processes
from whystuck.parse.traces.raw import Event, RawEvents
from whystuck.parse.traces.reader import read_trace
from whystuck.parse.weight import MAX_VALUES, check_json, weigh_pickle
from whystuck.pipeline import read_paths
from whystuck.read.dump_files import DumpFile, RankFiles, read_dump_files
from whystuck.read.log_files import LogPath, read_logs
from whystuck.read.naming import find_missing

KNOWN = b"[rank%d]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
TABLES = LogTables()


def test_of_too_many_known_lines_the_first_and_the_last_are_looked_at() -> None:
    reader = LogReader(TABLES, looks=50)
    for start in range(0, 40_000, 10_000):
        reader.feed(b"".join(KNOWN % rank for rank in range(start, start + 10_000)))
    part = reader.finish()

    ranks = [event.line.rank for event in part.events]
    assert ranks[:50] == list(range(50))
    assert ranks[-1] == 39_999
    assert part.left_out > 20_000
    # Those that were passed over are counted.
    assert part.events[-1].row == 40_000
    assert part.rows == 40_000


def test_open_traceback_ends_where_lines_are_passed_over() -> None:
    reader = LogReader(TABLES, looks=20)
    frame = b'  File "a.py", line 1, in f\n'
    reader.feed(b"Traceback (most recent call last):\n" + frame * 10_000 + b"ValueError: x\n")
    part = reader.finish()

    assert part.left_out > 1_000
    assert len(part.traces) <= 1


def test_what_is_left_out_of_a_log_is_told(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    with path.open("wb") as file:
        file.writelines(KNOWN % (number % 10_000) for number in range(130_000))

    (gap,) = read_logs([LogPath(path, "job.log")], TABLES).gaps

    assert "left out: repeated, or too many" in gap.reason


def test_one_endless_line_is_read_in_pieces() -> None:
    reader = LogReader(TABLES)
    for _ in range(20):
        reader.feed(b"RuntimeError: x" * 70_000)
        assert len(reader._rest) <= 1 << 21
    assert reader.finish().size == 21_000_000


def test_json_of_many_values_is_refused() -> None:
    check_json(b"[" + b"1," * 1_000 + b"1]")
    with pytest.raises(ParseError, match="holds more than"):
        check_json(b"[" + b"1," * (MAX_VALUES + 1) + b"1]")
    samples = b'{"samples":[' + b"{}," * 1_000_001 + b"{}]}"
    with pytest.raises(ParseError, match="holds more than"):
        parse_processes(samples, rank=0, worker=False, artifact="proc.json")


def test_pickle_of_many_containers_is_refused_and_a_sound_one_is_light() -> None:
    sound = as_pickle(make_dump([make_entry(seq=seq) for seq in range(1, 20_001)]))

    assert weigh_pickle(sound) < 1 << 28
    with pytest.raises(ParseError, match="containers"):
        weigh_pickle(b"\x80\x02]" + b"]" * (5 << 20))


def test_heavy_dump_does_not_cost_the_others(tmp_path: Path) -> None:
    sound = as_pickle(make_dump([make_entry(seq=1)]))
    (tmp_path / "0").write_bytes(b"\x80\x02}(" + b"]" * (9 << 20))
    for rank in (1, 2):
        (tmp_path / str(rank)).write_bytes(sound)
    files = [RankFiles(rank, (DumpFile(tmp_path / str(rank), str(rank)),)) for rank in range(3)]

    read = read_dump_files(files)

    assert sorted(dump.rank for table in read.tables for dump in table.dumps) == [1, 2]
    assert [gap.rank for gap in read.gaps] == [0]


def test_event_without_an_end_is_not_held() -> None:
    taken = 0

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        yield b'{"traceEvents":[{"name":"'
        while True:
            taken += 1
            assert taken < 100
            yield b"x" * (1 << 20)

    events = RawEvents(pieces(), Event)

    assert list(events) == []
    assert not events.is_whole


def test_events_that_are_parts_of_texts_are_not_looked_at_one_by_one() -> None:
    text = rb"\"traceEvents\":[" * 300_000

    with pytest.raises(ParseError, match="traceEvents"):
        read_trace([b'{"schemaVersion":1,"a":"x"traceEvents":[' * 1_000 + text])


@pytest.mark.parametrize("size", [(1 << 31) - 1, 1 << 62, -5, MAX_RANK + 2])
def test_size_of_the_world_that_no_job_has_is_told_and_not_taken(tmp_path: Path, size: int) -> None:
    incident = tmp_path / "incidents" / "000"
    rank = incident / "n0" / "rank-0"
    rank.mkdir(parents=True)
    (incident / "incident.json").write_text(json.dumps({"kind": "exit", "world_size": size}))
    (rank / "exit.json").write_text('{"code": 1, "pid": 5}')

    evidence = read_paths([tmp_path])

    assert evidence.topology.world_size == 0
    assert [gap.reason for gap in evidence.gaps if gap.what == "world size"]


def test_ranks_of_a_huge_world_are_missed_without_a_list_of_them() -> None:
    (gap,) = find_missing(1 << 62, {0, 5}, [])

    assert gap.what == f"evidence of {(1 << 62) - 2} ranks"


def test_of_an_endless_message_both_ends_are_kept() -> None:
    text = "first " + "x" * 5_000_000 + " last"
    record = json.dumps({"type": "ValueError", "message": text}).encode()

    message = parse_exception(record, rank=0, artifact="exception.json").message

    assert len(message) < 40_000
    assert message.startswith("first ")
    assert message.endswith(" last")


def test_group_of_more_members_than_there_can_be_is_refused() -> None:
    with pytest.raises(ValueError, match="more members"):
        Vocabulary().add_group("g", "", "[" + "1, " * 3_000_000 + "1]")


def test_stack_of_any_depth_is_merged() -> None:
    frames = [Frame(f"f{number}", "a.py", number) for number in range(50_000)]

    nodes = merge_stacks({0: frames, 1: frames})
    functions = []
    while nodes:
        functions.append(nodes[0].function)
        nodes = nodes[0].children

    assert (functions[0], functions[-1]) == ("f49999", "f0")
    assert len(functions) == 250


def test_members_of_groups_are_held_once_for_all_ranks(tmp_path: Path) -> None:
    for number in range(3):
        rank = tmp_path / "n0" / f"rank-{number}"
        rank.mkdir(parents=True)
        groups = {"0": list(range(2000)), f"own{number}": [number]}
        (rank / "beat.json").write_text(json.dumps({"pid": 1, "groups": groups}))

    beats = read_paths([tmp_path]).beats

    assert len(beats) == 3
    assert all(dict(beat.groups)["0"] is dict(beats[0].groups)["0"] for beat in beats)
