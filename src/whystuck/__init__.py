"""whystuck tells why a distributed PyTorch job is stuck, slow or dead."""

from whystuck.marks import mark, step

__all__ = ["__version__", "mark", "step"]

__version__ = "0.1.0"
