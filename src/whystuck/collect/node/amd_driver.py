"""AMD's own Python package for its driver, where both are there and fit each other."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any


def shorten(error: Exception) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split())[:120]


def load_amdsmi() -> tuple[Any, str]:
    """Return the package, or None and why; it prints when the library is missing, so look first."""
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        return None, "amdsmi is not installed; `pip install 'whystuck[amd]'` brings it"
    rocm = [os.environ[name] for name in ("ROCM_HOME", "ROCM_PATH") if os.environ.get(name)]
    places = [*(f"{root}/lib/libamd_smi.so" for root in rocm), "libamd_smi.so"]
    places += [str(Path(spec.origin).parent / "libamd_smi.so"), "/opt/rocm/lib/libamd_smi.so"]
    if not any(map(_can_load, places)):
        return None, "AMD's library libamd_smi.so is not on this machine"
    try:
        import amdsmi
    except (ImportError, AttributeError, KeyError, OSError) as error:
        return None, f"amdsmi does not fit the library of this machine: {shorten(error)}"
    return amdsmi, ""


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
