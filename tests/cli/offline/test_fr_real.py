"""``whystuck fr`` on the dumps of a real job on gloo that does what PyTorch's tutorial does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# Sizes are equal here: gloo ends a rank that meets another size, and then nobody waits.
SCRIPT = """\
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace


def dump_when_stuck(folder, rank):
    while not os.path.exists(f"{folder}/through"):
        time.sleep(0.05)
    time.sleep(0.5)
    data = _dump_fr_trace(True, True, False)
    with open(f"{folder}/dumps/host-{rank}_trace_{rank}", "wb") as stream:
        stream.write(data)
    # Whoever ends first takes the connection from the other, which must not end before its dump.
    while len(os.listdir(f"{folder}/dumps")) < 2:
        time.sleep(0.05)
    os._exit(0)


def main(folder, rank):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    watch = threading.Thread(target=dump_when_stuck, args=(folder, rank))
    watch.start()
    values = torch.full((3, 4), float(rank))
    for _ in range(2):
        dist.all_reduce(values)
    if rank == 0:
        dist.all_reduce(values)
    for _ in range(2):
        dist.all_reduce(values)
    open(f"{folder}/through", "w").close()
    watch.join()


main(sys.argv[1], int(sys.argv[2]))
"""
EXTRA_LINE = 1 + SCRIPT.splitlines().index("    if rank == 0:") + 1


def test_real_extra_all_reduce_is_named_with_its_line(tmp_path: Path) -> None:
    script, dumps = tmp_path / "crash.py", tmp_path / "dumps"
    script.write_text(SCRIPT)
    dumps.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WHYSTUCK_DISABLE": "1"}
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(tmp_path), str(rank)], env=environment)
        for rank in (0, 1)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    told = subprocess.run(
        [sys.executable, "-m", "whystuck", "fr", str(dumps), "--format", "json"],
        capture_output=True,
        check=False,
    )
    report = json.loads(told.stdout)
    [finding] = report["findings"]
    [timeline] = report["timeline"]
    parting = next(op for op in timeline["ops"] if op["mark"] == "divergence")

    assert (told.returncode, told.stderr) == (1, b"")
    assert (finding["code"], finding["culprits"]["ranks"]) == ("H102", [0])
    assert finding["where"][0] | {"file": ""} == {
        "rank": 0, "file": "", "line": EXTRA_LINE, "function": "main"}  # fmt: skip
    assert [part["sites"][0]["line"] for part in parting["classes"]] == [EXTRA_LINE, EXTRA_LINE + 2]
