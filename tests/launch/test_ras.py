"""A job that hangs while one of its ranks answers as NCCL's RAS does."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from tests.backends import on_both_slowly
from tests.launch.running import clean_environment, run_whystuck, torchrun
from tests.parse.ras_answers import make_json

ROOT = Path(__file__).parents[2]
ANSWER = make_json([41, 40])
SCRIPT = f"""
import socket, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
import torch.distributed as dist
from tests.collect.node.ras_server import answer

def serve(listener):
    while True:
        client, _ = listener.accept()
        with client:
            answer(client, "json", {ANSWER!r})

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), reuse_port=True)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
for step in range(20):
    if step == 10 and dist.get_rank() == 1:
        time.sleep(600)
    dist.barrier()
"""


@on_both_slowly
def test_stall_is_cited_with_what_ras_tells(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        port = str(holder.getsockname()[1])
        options = ("--stall-after", "6", "--on-stall", "kill", "--evidence", "ev")
        done = run_whystuck(
            "run", *options, "--", *torchrun(2, script), port,
            cwd=tmp_path, environment=clean_environment(NCCL_RAS_ADDR=f"127.0.0.1:{port}"),
        )  # fmt: skip

    assert done.returncode == 124, done.stderr.decode()
    incident = tmp_path / "ev/incidents/000"
    (kept,) = incident.glob("*/ras.json")
    assert kept.read_bytes() == ANSWER
    report = json.loads((incident / "report.json").read_text())
    finding = report["findings"][0]
    assert (finding["code"], finding["culprits"]["ranks"]) == ("H101", [1])
    cited = [one for one in finding["because"] if one["text"].startswith("NCCL RAS: rank 1 issued")]
    assert [one["artifact"] for one in cited] == [f"{kept.parent.name}/ras.json"]
    assert not [gap for gap in report["gaps"] if "RAS" in gap["what"]]
