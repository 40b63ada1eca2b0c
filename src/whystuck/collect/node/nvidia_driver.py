"""Asking NVIDIA's driver (NVML), so that what it cannot answer costs only the figure asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MAX_PROBLEMS: Final = 8


class DeviceLostError(Exception):
    """The driver no longer reaches a device, or wants it reset: nothing of it can be read."""


class DriverLostError(Exception):
    """There is no driver, or it has gone; the message says why, in words for people."""


class Driver:
    """An open connection to the driver; ``nvml`` is the module that speaks to it.

    Raises DriverLostError when there is no driver, no package for it, or no right to use it.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise DriverLostError(
                "nvidia-ml-py is not installed; `pip install 'whystuck[nvidia]'` brings it"
            ) from None
        self.nvml: Any = pynvml
        self._absent: set[tuple[str, str]] = set()
        self._problems: dict[str, None] = {}
        self._passing: dict[str, None] = {}
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DriverLostError(f"NVIDIA's driver cannot be asked: {error}") from None

    def close(self) -> None:
        """Give the connection up; its handles are void from now on."""
        try:
            self.nvml.nvmlShutdown()
        except self.nvml.NVMLError:
            return  # it has gone by itself

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read, without what a device just does not have."""
        return (*self._problems, *self._passing)

    def begin_round(self) -> None:
        """Forget problems that may have passed."""
        self._passing = {}

    def ask(self, device: str, figure: str, call: Callable[..., T], *args: object) -> T | None:
        """Return what ``call`` returns, or None when the driver does not tell it.

        What a device does not support, or we may not see, is not asked for again. Raises
        DeviceLostError and DriverLostError when no other call would be answered either.
        """
        if (device, figure) in self._absent:
            return None
        try:
            return call(*args)
        except (self.nvml.NVMLError, self.nvml.NVMLLibraryMismatchError) as error:
            self._judge(device, figure, error)
        except UnicodeDecodeError:
            self._absent.add((device, figure))
        return None

    def _judge(self, device: str, figure: str, error: Exception) -> None:
        nvml, code = self.nvml, getattr(error, "value", None)
        if code in {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}:
            raise DeviceLostError(f"GPU {device}: {error}")
        if code in {nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED}:
            raise DriverLostError(f"NVIDIA's driver has gone: {error}")
        if code == nvml.NVML_ERROR_NO_PERMISSION:
            self._absent.add((device, figure))
            if len(self._problems) < _MAX_PROBLEMS:
                self._problems[f"we may not read {figure} of GPU {device}"] = None
        elif code in {
            None,  # a library that is too old for this call
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        }:
            self._absent.add((device, figure))
        else:  # such as a timeout: it may be answered the next time
            self.tell(f"{figure} of GPU {device} could not be read: {error}")

    def tell(self, problem: str) -> None:
        """Add a sentence to `problems`, until the next round; the first few are kept."""
        if len(self._passing) < _MAX_PROBLEMS:
            self._passing[problem] = None
