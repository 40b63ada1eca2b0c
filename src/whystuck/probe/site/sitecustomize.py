"""Start the probe of whystuck, then the ``sitecustomize`` that this one hides."""

import os
import sys

_PACKAGE = "_whystuck_probe"


def _start_probe():
    # type: () -> None
    asked = os.environ.get("WHYSTUCK_JOB_DIR") or os.environ.get("WHYSTUCK_AGENT_DIR")
    if not asked or os.environ.get("WHYSTUCK_DISABLE") == "1" or _PACKAGE in sys.modules:
        return
    # A package made by hand: importlib.util would cost more than all that follows.
    package = type(sys)(_PACKAGE)
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules[_PACKAGE] = package
    from _whystuck_probe import install

    install.start_interpreter()


def _start_hidden():
    # type: () -> None
    """Run the next ``sitecustomize`` on the path, as Python would have done without us."""
    # What importlib is made of, and loaded already; the package itself is not.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        # Without us there is no such module, and Python goes on.
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _start_probe()
except Exception:
    pass
# Its errors are the job's own: Python reports them, as it would without us.
_start_hidden()
