"""Jobs under ``whystuck run --trace-lines``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.backends import on_both_slowly
from tests.launch.running import run_whystuck, torchrun

TRAIN = """
import os, signal, textwrap, threading
import torch, torch.distributed as dist

def forward(x):
    y = x * 2
    return y.sum()

def feed(ready):
    for number in range(5):
        item = number
    ready.set()

def main():
    dist.init_process_group("gloo")
    ready = threading.Event()
    threading.Thread(target=feed, args=(ready,), name="feeder").start()
    ready.wait()
    for step in range(40):
        loss = forward(torch.ones(4))
        textwrap.wrap("words of a library")
        dist.all_reduce(loss)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

main()
"""
LINES = TRAIN.splitlines()
KILL = next(number for number, text in enumerate(LINES, 1) if "os.kill" in text)
LOOP = next(number for number, text in enumerate(LINES, 1) if "for step" in text)


def _run(tmp_path: Path, *options: str) -> tuple[dict[str, Any], str]:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = torchrun(2, script)
    done = run_whystuck("run", "--evidence", "ev", *options, "--", *command, cwd=tmp_path)
    assert done.returncode == 1
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())
    return report, done.stderr.decode()


@on_both_slowly
def test_rank_when_killed_then_its_last_lines_are_shown(tmp_path: Path) -> None:
    report, shown = _run(tmp_path, "--trace-lines", "200")
    paths = {(path["rank"], path["thread"]): path for path in report["executed"]}
    assert {(1, "MainThread"), (0, "MainThread"), (1, "feeder")} <= set(paths)
    main = paths[1, "MainThread"]
    last = [site["line"] for site in main["runs"][-1]["lines"]]
    assert last[-2:] == [KILL - 1, KILL]
    loop = max(main["runs"], key=lambda run: run["times"])
    body = [(site["function"], site["line"] - LOOP) for site in loop["lines"]]
    assert loop["times"] > 20
    forward = LOOP - next(number for number, text in enumerate(LINES, 1) if "y = x" in text)
    steps = [("main", 0), ("main", 1), ("forward", -forward), ("forward", 1 - forward)]
    assert body == [*steps, ("main", 2), ("main", 3)]
    assert paths[1, "feeder"]["is_main"] is False
    assert paths[1, "feeder"]["runs"][-1]["lines"][-1]["function"] == "feed"
    files = {
        site["file"] for path in paths.values() for run in path["runs"] for site in run["lines"]
    }
    assert files == {str(tmp_path / "train.py")}
    assert 0 < main["line_ns"] < 1e6
    assert 0 < main["share"] < 1
    assert f"last lines that rank 1 executed (MainThread; {main['count']} in all; " in shown
    assert f",{KILL - 1},{KILL} in main\n" in shown


def test_job_when_nothing_is_asked_then_no_lines_are_kept(tmp_path: Path) -> None:
    report, shown = _run(tmp_path)
    assert report["executed"] == []
    assert "executed" not in shown
    assert not list((tmp_path / "ev").rglob("executed.lines*"))
