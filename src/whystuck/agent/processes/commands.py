"""What a command line tells of a process: a launcher, one that multiprocessing made, or neither."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_INTERPRETER: Final = re.compile(r"(?:python|pypy)[0-9.]*t?(?:-dbg)?$")
_WITH_VALUE: Final = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_LAUNCHERS: Final = frozenset(
    {
        *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        *("deepspeed", "deepspeed.launcher.launch", "deepspeed.launcher.runner"),
        *("accelerate-launch", "accelerate.commands.launch", "composer", "composer.cli.launcher"),
        *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "horovodrun"),
        *("torch_xla.distributed.xla_dist", "msrun"),
    }
)
_LAUNCHER_FILES: Final = (
    *("/torch/distributed/run.py", "/torch/distributed/launch.py"),
    *("/deepspeed/launcher/launch.py", "/deepspeed/launcher/runner.py"),
    "/accelerate/commands/launch.py",
)
# These do other things, too, and launch with the one subcommand.
_SUBCOMMANDS: Final = {
    "accelerate": "launch",
    "accelerate.commands.accelerate_cli": "launch",
    "fabric": "run",
    "lightning": "run",
    "torchx": "run",
    "colossalai": "run",
    "whystuck": "run",
}
_SPAWN_MARKS: Final = (
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "--multiprocessing-fork",
)
_TOOLS: Final = (
    "torch._inductor.compile_worker",
    "torch/_inductor/compile_worker",
    "multiprocessing.resource_tracker",
)


class Program(NamedTuple):
    """What runs: a module, the path of a script, or that of another program."""

    name: str
    arguments: Sequence[str]


def find_program(words: Sequence[str]) -> Program:
    """Take the interpreter and its options off a command line; the name is empty for ``-c``."""
    if not words:
        return Program("", ())
    if not _INTERPRETER.match(_base(words[0])):
        return Program(words[0], words[1:])
    place = 1
    while place < len(words):
        word = words[place]
        if word == "-m":
            return Program(words[place + 1] if place + 1 < len(words) else "", words[place + 2 :])
        if word.startswith("-c") or word == "-":
            return Program("", words[place + 1 :])
        if not word.startswith("-"):
            return Program(word, words[place + 1 :])
        place += 2 if word in _WITH_VALUE else 1
    return Program("", ())


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a command starts the ranks of a job and is none itself."""
    path, arguments = find_program(words)
    name = _base(path).removesuffix(".__main__")
    subcommand = _SUBCOMMANDS.get(name)
    if subcommand is not None:
        return subcommand in arguments[:2]
    return name in _LAUNCHERS or path.endswith(_LAUNCHER_FILES)


def is_spawned(words: Sequence[str]) -> bool:
    """Whether multiprocessing started a process anew, as ranks and as workers of data loaders."""
    return any(mark in word for word in words[:6] for mark in _SPAWN_MARKS)


def is_tool(words: Sequence[str]) -> bool:
    """Whether a process serves another one and never trains, such as a compiler of kernels."""
    return any(mark in word for word in words[:6] for mark in _TOOLS)


def _base(path: str) -> str:
    return path.rpartition("/")[2]
