"""Process groups that are made and destroyed for ever: what is known of groups stays true."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.launch.running import clean_environment

BEGIN = """
import json, os, sys
import torch, torch.distributed as dist
from whystuck.probe import files, peers, progress
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
OPS = (
    BEGIN
    + """
peers._MAX_KEYS = 8
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


def _run(code: str, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment() | {"WHYSTUCK_DISABLE": "1", "WHYSTUCK_JOB_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_group_that_takes_the_place_of_another_is_written(tmp_path: Path) -> None:
    for name, written in _run(GROUPS, tmp_path):
        assert name in written


def test_sends_of_new_groups_are_noted_when_there_were_thousands(tmp_path: Path) -> None:
    counts, again, keys = _run(OPS, tmp_path)
    assert counts == [1] * 50
    assert again == 2, "of a group that is still there, all are counted"
    assert keys <= 8
