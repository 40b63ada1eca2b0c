"""whystuck tells why a distributed PyTorch job is stuck, slow or dead."""

__all__ = ["__version__"]

__version__ = "0.1.0"
