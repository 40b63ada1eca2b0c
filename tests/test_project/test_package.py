"""What is installed: entry points, and the files in the wheel."""

import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def test_console_script_is_installed() -> None:
    [script] = entry_points(group="console_scripts", name="whystuck")

    assert script.value == "whystuck.cli:main"


def test_probe_is_announced_to_torch() -> None:
    [backend] = entry_points(group="torch.backends", name="whystuck")

    assert backend.value == "whystuck.probe:autoload"
    assert callable(backend.load())


@pytest.mark.slow
def test_wheel_is_pure_and_complete(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--wheel-dir",
            str(tmp_path),
            str(ROOT),
        ],
        check=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(SOURCE))
        for path in (SOURCE / "whystuck").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert wheel.name.endswith("-py3-none-any.whl")
    assert sources <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
