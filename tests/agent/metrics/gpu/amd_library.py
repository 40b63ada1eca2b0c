"""Builds stand-ins for AMD's library, in which all that the Python package wants must be there."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGE = importlib.util.find_spec("amdsmi")


def build_amd_library(source: Path, folder: Path) -> Path:
    """Build ``libamd_smi.so`` in a folder: what the source lacks is "not supported"."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build a stand-in for AMD's library")
    if PACKAGE is None or PACKAGE.origin is None:
        pytest.skip("amdsmi is not installed")
    wrapper = Path(PACKAGE.origin).with_name("amdsmi_wrapper.py").read_text()
    wanted = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper))
    text = source.read_text()
    ours = set(re.findall(r"^int (\w+)\(", text, flags=re.MULTILINE))
    assert ours < wanted
    more = "\n".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}" for name in wanted - ours)
    (folder / "stand_in.c").write_text(f"{text}\n{more}\n")
    command = [compiler, "-shared", "-fPIC", "-w", "-o", str(folder / "libamd_smi.so")]
    subprocess.run([*command, str(folder / "stand_in.c")], check=True, capture_output=True)
    return folder
