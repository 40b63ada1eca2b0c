"""Reading the recorders of a torch that has other functions than the one here."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends import on_both, on_both_slowly
from tests.probe.job import artifact, job_dir, read_until_trained, start_rank

from whystuck.collect.recorder import RecorderError, ask_probe_for_dump

OLD_NAMES = """
c = torch._C._distributed_c10d
c._dump_nccl_trace, c._dump_nccl_trace_json = c._dump_fr_trace, c._dump_fr_trace_json
del c._dump_fr_trace, c._dump_fr_trace_json
"""
NO_SWITCHES = """
c = torch._C._distributed_c10d
real = c._dump_fr_trace
c._dump_nccl_trace = lambda: real()
del c._dump_fr_trace, c._dump_fr_trace_json
"""
ONLY_JSON = "del torch._C._distributed_c10d._dump_fr_trace"
NONE = ONLY_JSON + ", torch._C._distributed_c10d._dump_fr_trace_json"
NCCL_TOO = """
import json, pickle
c = torch._C._distributed_c10d
status = {"0": {"last_enqueued_collective": 40, "last_completed_collective": 30}}
c._dump_nccl_trace = lambda *switches: pickle.dumps({"entries": ["of nccl"]})
c._dump_nccl_trace_json = lambda *switches: json.dumps({"pg_status": status}).encode()
"""
NCCL_UNUSED = """
c = torch._C._distributed_c10d
c._dump_nccl_trace = lambda *switches: b"nothing"
c._dump_nccl_trace_json = lambda *switches: b'{"version": "2.10"}'
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with job_dir() as made:
        yield made


def _dump(tmp_path: Path, folder: Path, torch_is: str) -> Path:
    """Have a rank with such a torch dump, and end it; return the dump."""
    wait = "\nprint('changed', flush=True); time.sleep(60)"
    process = start_rank(tmp_path, folder, torch_is + wait)
    try:
        read_until_trained(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"changed\n"
        ask_probe_for_dump(artifact(folder, "probe", process), folder / "fr.pickle")
    finally:
        process.kill()
        process.communicate()
    return folder / "fr.pickle"


@on_both_slowly
@pytest.mark.parametrize(
    "torch_is",
    [
        pytest.param(OLD_NAMES, id="old names", marks=pytest.mark.slow),
        pytest.param(NO_SWITCHES, id="no switches"),
    ],
)
def test_dump_when_torch_is_old_then_has_the_users_lines(
    tmp_path: Path, folder: Path, torch_is: str
) -> None:
    entries = pickle.loads(_dump(tmp_path, folder, torch_is).read_bytes())["entries"]
    assert len(entries) == 3
    assert "train.py" in str(entries[0]["frames"])


@on_both
def test_dump_when_there_is_only_json_then_it_is_taken(tmp_path: Path, folder: Path) -> None:
    assert len(json.loads(_dump(tmp_path, folder, ONLY_JSON).read_bytes())["entries"]) == 3


@on_both_slowly
def test_dump_when_there_is_none_then_the_probe_says_so(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(RecorderError, match="could not dump"):
        _dump(tmp_path, folder, NONE)


@on_both_slowly
def test_dump_when_nccls_recorder_is_used_too_then_both_are_kept(
    tmp_path: Path, folder: Path
) -> None:
    first = _dump(tmp_path, folder, NCCL_TOO)
    assert pickle.loads(first.read_bytes())["entries"] == ["of nccl"]
    second = pickle.loads((folder / "fr_gloo.pickle").read_bytes())
    assert len(second["entries"]) == 3


@on_both_slowly
def test_dump_when_nccls_recorder_is_unused_then_gloos_is_the_first(
    tmp_path: Path, folder: Path
) -> None:
    first = _dump(tmp_path, folder, NCCL_UNUSED)
    assert len(pickle.loads(first.read_bytes())["entries"]) == 3
    assert not (folder / "fr_gloo.pickle").exists()


# By its own name, and by the one that torch calls old, which would lose against ours.
@on_both_slowly
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("TORCH_FR_BUFFER_SIZE", marks=pytest.mark.slow),
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
    ],
)
def test_recorder_when_the_script_sets_its_size_after_the_import_then_that_counts(
    tmp_path: Path, folder: Path, name: str
) -> None:
    # The probe beats from the import on, and torch makes its recorder when it is first read.
    script = """
import os, time
import torch, torch.distributed as dist
time.sleep(1.5)
os.environ["NAME"] = "2"
dist.init_process_group("gloo")
for _ in range(5):
    dist.all_reduce(torch.ones(2))
print("trained", flush=True)
time.sleep(60)
"""
    set_by_run = {"TORCH_FR_BUFFER_SIZE": "2000", "WHYSTUCK_FR": "TORCH_FR_BUFFER_SIZE"}
    script = script.replace("NAME", name)
    process = start_rank(tmp_path, folder, "", extra=set_by_run, script=script)
    try:
        read_until_trained(process)
        ask_probe_for_dump(artifact(folder, "probe", process), folder / "fr.pickle")
    finally:
        process.kill()
        process.communicate()
    assert len(pickle.loads((folder / "fr.pickle").read_bytes())["entries"]) == 2
