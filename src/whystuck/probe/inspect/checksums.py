"""Checksums of tensors, bit by bit, made on the device that holds them.

The bits are taken as whole numbers ``x[i]`` of at most 32 bits, and the checksum is the sum of
``x[i] * w[i]`` modulo 2^64. All weights ``w[i]`` are odd: a bit that flips changes the sum. Their
lower halves are all different, and differ by less than 2^32: two elements that change places change
it too. Their upper halves are as good as random, for all other changes.
"""

from __future__ import annotations

import sys

from .pieces import get_size, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Elements of a piece; the weights of one piece are kept, 2 MiB for each device.
PIECE = 1 << 18
_MASK = (1 << 64) - 1
_HALF = 33
_INT_TYPES = {1: "uint8", 2: "int16", 4: "int32", 8: "int32", 16: "int32"}


class Checksums:
    """Makes checksums; keeps the weights of each device."""

    def __init__(self) -> None:
        self._weights: dict[str, Any] = {}

    def sum_up(self, tensor: Any) -> Any:
        """Return the checksum of a tensor as a tensor of one int64 on its device."""
        torch: Any = sys.modules["torch"]
        flat = _as_numbers(torch, tensor)
        weights = self._weights_of(torch, flat.device)
        total = torch.zeros((), dtype=torch.int64, device=flat.device)
        for number, piece in enumerate(split(flat, PIECE)):
            part = (piece.to(torch.int64) * weights[: piece.numel()]).sum()
            total += part * _as_int64(_mix(number + 1) | 1)
        return total

    def _weights_of(self, torch: Any, device: Any) -> Any:
        weights = self._weights.get(str(device))
        if weights is None:
            index = torch.arange(get_size(device, PIECE), dtype=torch.int64, device=device)
            upper = index + 1
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                upper = (upper ^ (upper >> shift)) * _as_int64(factor)
            upper = upper ^ (upper >> 31)
            weights = (upper << _HALF) | (2 * index + 1)
            self._weights[str(device)] = weights
        return weights


def as_unsigned(value: int) -> int:
    """Return a checksum as it is kept: a whole number below 2^64."""
    return value & _MASK


def _as_numbers(torch: Any, tensor: Any) -> Any:
    """Return the bits of a tensor as one row of whole numbers, without a copy where that can be."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    flat = tensor.reshape(-1)
    return flat.view(getattr(torch, _INT_TYPES[flat.element_size()]))


def _mix(value: int) -> int:
    """Spread a number over 64 bits, as splitmix64 does."""
    value = (value * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _as_int64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
