"""Start the probe of whystuck, then the ``sitecustomize`` that this one hides."""

import os
import sys


def _start_probe():
    # type: () -> None
    if not os.environ.get("WHYSTUCK_JOB_DIR") or os.environ.get("WHYSTUCK_DISABLE") == "1":
        return
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = spec_from_file_location(
        "_whystuck_probe",
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["_whystuck_probe"] = module
    spec.loader.exec_module(module)
    module.start_interpreter()


def _start_hidden():
    # type: () -> None
    """Run the next ``sitecustomize`` on the path, as Python would have done without us."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _start_probe()
except Exception:
    pass
# Its errors are the job's own: Python reports them, as it would without us.
_start_hidden()
