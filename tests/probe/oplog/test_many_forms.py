"""Sizes that change with each batch, and groups of thousands of ranks: an op keeps its name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.backends import on_both_slowly
from tests.launch.running import END, clean_environment
from tests.probe.job import job_dir
from tests.probe.oplog.test_log import HEAD, run_job

from whystuck.parse.ops.log import RankOps, parse_op_log

ALONE = """
import json, os, sys
import torch, torch.distributed as dist
from whystuck.probe.oplog.forms import KnownForms, describe_tensors
from whystuck.probe.oplog.log import OpLog
from whystuck.probe.oplog.ring import Ring
log, known = OpLog(Ring(sys.argv[1], 256)), KnownForms()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
FORMS = """
for size in range(30_000):
    tensors = [torch.empty(size, device="meta")]
    key = ("all_reduce", (size, 3))
    found = known.get(key) or known.keep(key, (log.learn_form(
        key, describe_tensors("all_reduce", tensors, tensors, {})), 0))
    assert found[0] > 0, size
    assert len(known) <= 4096
known.keep(("wide", tuple(range(300_000))), (1, 0))
known.keep(("next",), (1, 0))
assert len(known) == 1, "of splits to many ranks, few keys are kept"
print(json.dumps(log.learn_group(dist.group.WORLD.group_name).number))
"""
GROUP = """
world = dist.distributed_c10d._world
members = [*range(0, 8192, 2), *range(1, 9, 2), 9000, 8999]
world.pg_group_ranks[dist.group.WORLD] = {rank: at for at, rank in enumerate(members)}
print(json.dumps(log.learn_group(dist.group.WORLD.group_name).number))
"""
JOB = """
tensor = torch.ones(9_000)
for size in range(1, 9_000):
    dist.all_reduce(tensor[:size])
dist.barrier()
"""


def _run(code: str, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "ops")],
        env=clean_environment() | {"WHYSTUCK_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "null")


def _read(folder: Path) -> RankOps:
    return parse_op_log((folder / "ops").read_bytes())


def test_more_forms_than_fit_keep_the_name_of_their_op(tmp_path: Path) -> None:
    assert _run(ALONE + FORMS, tmp_path) == 1, "there is room for groups"
    log = _read(tmp_path)
    assert log.lost_values == 0
    assert {form.op for form in log.forms[1:]} == {"all_reduce"}
    assert sum(form.input_bytes < 0 for form in log.forms) == 1


def test_members_of_a_large_group_are_known(tmp_path: Path) -> None:
    assert _run(ALONE + GROUP, tmp_path) == 1
    expected = (*range(0, 8192, 2), *range(1, 9, 2), 9000, 8999)
    assert _read(tmp_path).groups[1].ranks == expected


@on_both_slowly
def test_ops_of_a_job_whose_sizes_change_are_known(tmp_path: Path) -> None:
    with job_dir() as folder:
        code, output = run_job(tmp_path, folder, HEAD + JOB + END)
        logs = [parse_op_log(path.read_bytes()) for path in folder.glob("ops-*")]
    assert code == 0, output.decode()
    for log in logs:
        ops = [log.forms[form].op for form in log.columns["form"].tolist()]
        assert set(ops) == {"all_reduce", "barrier"}
        assert log.forms[int(log.columns["form"][-2])].input_bytes == -1
