"""Watching for imports, in an interpreter where nothing else of the probe runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import whystuck

SCRIPT = """
import sys
package = type(sys)("_whystuck_probe")
package.__path__ = [sys.argv[1]]
sys.modules["_whystuck_probe"] = package
import _frozen_importlib as bootstrap
original, finders = bootstrap._find_spec, list(sys.meta_path)
from _whystuck_probe.import_watch import ImportWatch
ended = []
watch = ImportWatch({"colorsys", "never_there"}, ended.append)
watch.start()
assert sys.meta_path == finders
"""


def run(script: str) -> None:
    """Run a script while `colorsys` is watched for."""
    folder = Path(whystuck.__file__).parent / "probe"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + script, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


IMPORTS = {
    "import": "import colorsys",
    "asked before": "import importlib.util as u; u.find_spec('colorsys'); import colorsys",
    "own finder first": """
class Own:
    def find_spec(self, name, path=None, target=None):
        return finders[-1].find_spec(name, path, target)
sys.meta_path.insert(0, Own())
import colorsys
""",
    "own finder alone": """
class Own:
    def find_spec(self, name, path=None, target=None):
        return finders[-1].find_spec(name, path, target)
sys.meta_path[:] = [Own()]
import colorsys
""",
    "lazy": """
import importlib.util as u
spec = u.find_spec("colorsys")
spec.loader = u.LazyLoader(spec.loader)
module = sys.modules["colorsys"] = u.module_from_spec(spec)
spec.loader.exec_module(module)
assert not ended
import types; types.ModuleType.__getattribute__(module, "__class__")
module.rgb_to_hsv
""",
}


@pytest.mark.parametrize("script", IMPORTS.values(), ids=IMPORTS)
def test_end_of_an_import_is_told_once(script: str) -> None:
    run(
        script
        + """
assert ended == ["colorsys"], ended
assert "exec_module" not in vars(sys.modules["colorsys"].__spec__.loader)
import importlib
importlib.reload(sys.modules["colorsys"])
assert ended == ["colorsys"], ended
"""
    )


def test_nothing_is_left_when_nobody_watches() -> None:
    run("""
watch.stop()
assert bootstrap._find_spec is original
import colorsys
assert not ended
""")


def test_watch_ends_with_the_last_module() -> None:
    run("""
watch.stop()
ImportWatch({"colorsys"}, ended.append).start()
import colorsys
assert ended == ["colorsys"] and bootstrap._find_spec is original
""")


def test_function_that_the_job_puts_around_ours_stays() -> None:
    run("""
ours = bootstrap._find_spec
bootstrap._find_spec = lambda *args: ours(*args)
its = bootstrap._find_spec
watch.stop()
assert bootstrap._find_spec is its
for _ in range(100):
    watch = ImportWatch({"colorsys"}, ended.append)
    watch.start(); watch.stop()
watch = ImportWatch({"colorsys"}, ended.append)
watch.start()
import colorsys
assert bootstrap._find_spec is its and ended == ["colorsys"]
""")


def test_errors_of_finders_are_told_as_without_us() -> None:
    run("""
import traceback
def tell(name):
    try:
        __import__(name)
    except Exception:
        return traceback.format_exc()
class Fails:
    def find_spec(self, name, path=None, target=None):
        if name == "fails":
            raise ValueError(name)
sys.meta_path.append(Fails())
told = [tell("fails"), tell("absent")]
watch.stop()
assert told == [tell("fails"), tell("absent")], told
""")
