"""whystuck tells why a distributed PyTorch job is stuck, slow or dead."""

TYPE_CHECKING = False  # every process that imports torch comes here: nothing is imported
if TYPE_CHECKING:
    from whystuck.marks import mark, step

__all__ = ["__version__", "mark", "step"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Find what the code of a job calls, once it does."""
    if name not in ("mark", "step"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module("whystuck.marks"), name)
    globals()[name] = found
    return found
