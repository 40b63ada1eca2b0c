"""The part that runs inside the training process: stdlib only, Python 3.9 or newer.

It must never raise into the job, print, use the job's loggers, or outlive its use. Nothing
happens unless ``WHYSTUCK_JOB_DIR`` names the job folder of a supervisor, ``WHYSTUCK_AGENT_DIR`` the
folder of an agent that is to be asked for traces, or torch itself was told to ask such an agent.

Two doors lead in, and both may be used in one process:

* ``site/sitecustomize.py``, found through ``PYTHONPATH``, starts :mod:`install` when Python starts.
  It serves jobs whose environment does not have whystuck.
* the entry point of the group ``torch.backends`` calls :func:`autoload` at the end of
  ``import torch``.
"""

import os
import sys

PACKAGE = "_whystuck_probe"


def is_wanted():
    # type: () -> bool
    """Tell whether a supervisor asked for the probe in this process, or somebody for an agent."""
    if os.environ.get("WHYSTUCK_DISABLE") == "1":
        return False
    if os.environ.get("WHYSTUCK_JOB_DIR") or os.environ.get("WHYSTUCK_AGENT_DIR"):
        return True
    if not os.environ.get("KINETO_IPC_SOCKET_DIR"):
        return False
    from .kineto.agent_discovery import find_agent

    return find_agent() != ""


def autoload():
    # type: () -> None
    """Start the probe after ``import torch``; called by torch through the entry point."""
    try:
        if is_wanted():
            from importlib import import_module

            if PACKAGE not in sys.modules:
                _load()
            import_module(PACKAGE + ".install").torch_is_ready()
    except Exception:  # the job goes on without us
        return


def _load():
    # type: () -> None
    """Make this very folder a package of another name, so that both doors share one copy."""
    package = type(sys)(PACKAGE)
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules[PACKAGE] = package
