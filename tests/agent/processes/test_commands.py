from __future__ import annotations

import pytest

from whystuck.agent.processes.commands import find_program, is_launcher, is_spawned, is_tool

LAUNCHERS = [
    "/venv/bin/python /venv/bin/torchrun --nproc-per-node 2 train.py",
    "python3.12 -m torch.distributed.run --standalone train.py",
    "/usr/bin/python3 -u -X faulthandler -m torch.distributed.launch train.py",
    "python /site/torch/distributed/run.py train.py",
    "python -m torch.distributed.run.__main__ train.py",
    "/venv/bin/python -u -m deepspeed.launcher.launch --world_info=e30= train.py",
    "/venv/bin/python /venv/bin/deepspeed train.py",
    "/venv/bin/python3 /venv/bin/accelerate launch train.py",
    "python -m accelerate.commands.launch train.py",
    "python -W ignore /venv/bin/accelerate-launch train.py",
    "/venv/bin/python /venv/bin/whystuck run -- torchrun train.py",
    "python -m whystuck run -- python train.py",
    "mpirun -n 2 python train.py",
    "/venv/bin/python3.13t /venv/bin/torchrun train.py",
]
OTHERS = [
    "",
    "python",
    "python -",
    "python -m",
    "python -X",
    "python train.py --launcher torchrun",
    "python train.py -m torch.distributed.run",
    "python -c import torch.distributed.run",
    "python -u train.py accelerate launch",
    "/venv/bin/python /venv/bin/accelerate test",
    "/venv/bin/python /venv/bin/whystuck agent",
    "python /home/u/torchrun_like.py",
    "python /home/u/distributed/run.py",
    "python -m mypackage.train",
    "/home/u/train-binary --x",
]


@pytest.mark.parametrize("command", LAUNCHERS)
def test_launchers_are_known(command: str) -> None:
    assert is_launcher(command.split())


@pytest.mark.parametrize("command", OTHERS)
def test_what_only_names_a_launcher_is_none(command: str) -> None:
    assert not is_launcher(command.split())


def test_program_is_what_the_interpreter_runs() -> None:
    assert find_program(["python", "-u", "a/b.py", "-m", "x"]) == ("a/b.py", ["-m", "x"])
    assert find_program(["python3", "-Bm", "-m", "mod", "1"]) == ("mod", ["1"])
    assert find_program(["python", "-c", "print()", "x"]) == ("", ["print()", "x"])


def test_processes_of_multiprocessing_and_tools_are_known() -> None:
    spawned = ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"]
    assert is_spawned([*spawned, "--multiprocessing-fork"])
    assert not is_spawned(["python", "train.py"])
    assert is_tool(["python", "/site/torch/_inductor/compile_worker/__main__.py", "--pickler=x"])
    assert not is_tool(["python", "train.py"])
