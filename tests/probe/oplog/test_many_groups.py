"""Process groups that are made and destroyed for ever: what is known of groups stays true."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.backends import adapt, on_both_slowly
from tests.launch.running import clean_environment

BEGIN = """
import json, os, sys
import torch, torch.distributed as dist
from whystuck.probe import files, progress; from whystuck.probe.recorder import peers
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
GROUPS = (
    BEGIN
    + """
writer, seen = progress.GroupWriter(), []
for _ in range(3):
    group = dist.new_group([0])
    writer.write_if_changed()
    with open(files.path_of("groups")) as file:
        seen.append([group.group_name, sorted(json.load(file)["groups"])])
    dist.destroy_process_group(group)
print(json.dumps(seen))
"""
)
BEGUN = (
    BEGIN
    + """
progress.watch_groups(lambda *_: None)
for _ in range(20):
    dist.new_group([0])
progress.GroupWriter().write_if_changed()
with open(files.path_of("groups")) as file:
    begun = json.load(file)["begun"]
describe = progress._describe_members
print(json.dumps([begun, describe([7, 0, 1, 2, 5, 6]), describe([])]))
"""
)
OPS = (
    BEGIN
    + """
peers._MAX_KEYS = peers._ROOM[0] = 8
value, kept = [torch.ones(1)], dist.new_group([0])
def send(group):
    return peers.post(peers.SEND, (group, value, 0, 0), {})
send(kept)
counts = []
for _ in range(50):
    group = dist.new_group([0])
    op = send(group)
    counts.append(op is not None and op.count)
    dist.destroy_process_group(group)
again = send(kept)
print(json.dumps([counts, again.count, len(peers._LAST_BY_KEY)]))
"""
)

SENT = (
    BEGIN
    + """
value, kept = [torch.ones(1)], dist.new_group([0])
def send(group):
    return peers.post(peers.SEND, (group, value, 0, 0), {})
send(kept)
for _ in range(2 * peers._LEAST_KEYS):
    group = dist.new_group([0])
    send(group)
    dist.destroy_process_group(group)
print(json.dumps([send(kept).count, len(peers._LAST_BY_KEY) < peers._LEAST_KEYS]))
"""
)
BEATS = (
    BEGIN
    + """
from pathlib import Path
from whystuck.collect.beats import read_beat
from whystuck.probe import beat
beat._MAX_GONE = 3
told, one = [], beat.Beat()
for made in range(5):
    progress.COUNTS.recorded = 10 + made
    one._due_ns = 0
    one.write(0, 1)
    slot = read_beat(Path(files.path_of("beat")))
    told.append([slot.enqueued > 0, slot.recorded])
    group = dist.new_group([0])
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
print(json.dumps(told))
"""
)


def _run(code: str, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", adapt(code)],
        env=clean_environment() | {"WHYSTUCK_DISABLE": "1", "WHYSTUCK_JOB_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@on_both_slowly
def test_group_that_takes_the_place_of_another_is_written(tmp_path: Path) -> None:
    for name, written in _run(GROUPS, tmp_path):
        assert name in written


def test_members_of_the_last_groups_are_written_by_their_numbers(tmp_path: Path) -> None:
    begun, some, none = _run(BEGUN, tmp_path)

    assert begun == {str(number): "0" for number in range(5, 21)}
    assert (some, none) == ("0-2,5-7", "")


@on_both_slowly
def test_sends_of_new_groups_are_noted_when_there_were_thousands(tmp_path: Path) -> None:
    counts, again, keys = _run(OPS, tmp_path)
    assert counts == [1] * 50
    assert again == 2, "of a group that is still there, all are counted"
    assert keys <= 8


COUNTS = (
    BEGIN
    + """
from whystuck.probe.recorder import recorders
from whystuck.probe.beat import Beat, read_group_status
value, found = torch.ones(1), []
for number in range(120):
    group = dist.new_group([0])
    dist.all_reduce(value, group=group)
    dist.destroy_process_group(group)
    if number in (1, 119):
        (recorder,) = recorders.list_recorders()
        def decode():
            statuses = recorders._decode_status(recorder._to_json(False, False)).values()
            return [
                sum(max(0, int(one[f"last_{word}_collective"])) for one in statuses)
                for word in ("enqueued", "completed")
            ]
        # An op is counted as completed some time after its call has come back.
        found.append([decode(), list(read_group_status()), decode()])
print(json.dumps(found), flush=True)
# Torch itself may abort when threads of gloo outlive the interpreter.
os._exit(0)
"""
)
DEAR = (
    BEGIN
    + """
from whystuck.probe import beat
slot, calls, said = beat.Beat(), [], []
def count():
    calls.append(time.monotonic())
    while time.thread_time_ns() - begin_ns < cost_ns:
        pass
    return len(calls), 0
import time
beat.read_group_status = count
slot._has_group = True
for cost_ns in (0, 50_000_000):
    begin_ns = time.thread_time_ns()
    slot._due_ns = 0
    slot.write(0, 1)
    before = len(calls)
    rest_ns = slot._due_ns - time.monotonic_ns()
    slot.write(0, 1)
    said.append([len(calls) - before, rest_ns > 2_000_000_000])
print(json.dumps(said))
"""
)


@on_both_slowly
def test_collectives_of_many_groups_are_counted_as_those_of_few(tmp_path: Path) -> None:
    for before, (enqueued, completed), after in _run(COUNTS, tmp_path):
        assert before[0] == enqueued == after[0] > 0
        assert before[1] <= completed <= after[1]


def test_count_that_is_dear_is_made_rarely(tmp_path: Path) -> None:
    made, is_later = _run(DEAR, tmp_path)

    assert made[1] is False
    assert is_later == [0, True]


@on_both_slowly
def test_sends_of_groups_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    assert _run(SENT, tmp_path) == [2, True]


def test_recorder_is_not_asked_any_more_when_many_groups_are_gone(tmp_path: Path) -> None:
    assert _run(BEATS, tmp_path)[1:] == [[True, 0], [True, 0], [True, 0], [False, 14]]
