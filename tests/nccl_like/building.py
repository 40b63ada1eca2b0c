"""Builds what stands in for NCCL and CUDA, once for each torch."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_ASK_TORCH = """
import json, torch
from torch.utils import cpp_extension
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda,
    "include": cpp_extension.include_paths(),
    "lib": cpp_extension.library_paths(), "abi": int(torch._C._GLIBCXX_USE_CXX11_ABI),
    "flags": getattr(cpp_extension, "_get_pybind11_abi_build_flags", list)()}))
"""
_LIBRARIES = ("c10", "torch", "torch_cpu", "torch_python")


class NotBuiltError(Exception):
    """It cannot be built here; the text says why."""


@dataclass(frozen=True)
class Like:
    """The libraries: a backend of c10d as a module, and two of CUDA.

    ``has_cuda`` tells that torch has libraries of CUDA of its own, which would be found first.
    """

    backend: Path
    cudart: Path
    cuda: Path
    has_cuda: bool


def build(cache: Path, python: str = sys.executable) -> Like:
    """Build for the torch of an interpreter into a folder, or take what is there already."""
    if shutil.which("g++") is None or shutil.which("cc") is None:
        raise NotBuiltError("no C++ compiler")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise NotBuiltError("no Python.h")
    told = subprocess.run([python, "-c", _ASK_TORCH], capture_output=True, check=True)
    torch = json.loads(told.stdout)
    key = hashlib.sha256(json.dumps([torch, sys.version]).encode())
    for name in ("backend.cpp", "cuda.c", "building.py"):
        key.update((HERE / name).read_bytes())
    folder = cache / key.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    names = ("nccl_like.so", "libcudart.so.13", "libcuda.so.1")
    backend, cudart, cuda = (folder / name for name in names)
    like = Like(backend, cudart, cuda, has_cuda=bool(torch["cuda"]))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not like.cuda.exists():  # the last one
            _compile(_choose_flags(torch), HERE / "backend.cpp", like.backend)
            for path in (like.cudart, like.cuda):
                _compile(["cc", f"-Wl,-soname,{path.name}"], HERE / "cuda.c", path)
    return like


def _choose_flags(torch: dict[str, Any]) -> list[str]:
    return [
        "g++", "-std=c++20", "-O0", "-w", "-DTORCH_EXTENSION_NAME=nccl_like",
        f"-D_GLIBCXX_USE_CXX11_ABI={torch['abi']}",
        *(f"-I{path}" for path in [*torch["include"], sysconfig.get_path("include")]),
        *(f"-L{path}" for path in torch["lib"]),
        *torch["flags"],
    ]  # fmt: skip


def _compile(command: list[str], source: Path, target: Path) -> None:
    made = target.with_suffix(f".{os.getpid()}")
    libraries = [f"-l{name}" for name in _LIBRARIES] if command[0] == "g++" else []
    done = subprocess.run(
        [*command, "-shared", "-fPIC", "-o", made, source, *libraries],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    if done.returncode:
        raise NotBuiltError(f"it does not compile: {done.stderr[-2000:]}")
    made.replace(target)
