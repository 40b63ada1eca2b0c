"""Figures of tensors: made where the tensor is, in pieces, and without waiting for a device.

Of a tensor of the host they are there at once. Those of a device are a few numbers on the device
first; they are copied behind what is queued there, and read when the copy is done.
"""

from __future__ import annotations

import math
import sys

from .. import cuda
from .pieces import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Callable

# Elements of a piece: its copy in another type takes 4 or 8 MiB.
PIECE = 1 << 20
_FIELDS = ("nan", "inf", "subnormal", "saturated", "zero", "min", "max", "sum", "squares")
_DEVICES_WITHOUT_DOUBLE = ("mps",)
_MAX_DEPTH = 32


class quiet:  # noqa: N801 - used as a function is
    """No gradients, no modes of the user: what we compute is nobody's business."""

    def __enter__(self) -> None:
        torch: Any = sys.modules["torch"]
        self._guards: list[Any] = [torch.no_grad(), torch._C.DisableTorchFunction()]
        if torch._C._len_torch_dispatch_stack():
            self._guards.append(sys.modules["torch.utils._mode_utils"].no_dispatch())
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *error: object) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(*error)


def flatten(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors in nested lists, tuples and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        if depth < _MAX_DEPTH:
            for item in value:
                yield from flatten(item, depth + 1)
    elif hasattr(value, "element_size"):
        yield value


def size_of(tensor: Any) -> int:
    """Return the bytes of a tensor."""
    return int(tensor.numel()) * int(tensor.element_size())


def describe(tensor: Any) -> dict[str, Any]:
    """Return shape, type and number of elements."""
    return {
        "shape": [int(extent) for extent in tensor.shape],
        "dtype": str(tensor.dtype)[len("torch.") :],
        "count": int(tensor.numel()),
    }


def is_host(tensor: Any) -> bool:
    """Tell whether a tensor is in the memory of the host."""
    return str(tensor.device.type) == "cpu"


def is_captured(tensor: Any) -> bool:
    """Tell whether work on a tensor goes into a CUDA graph now, where ours must not."""
    if str(tensor.device.type) != "cuda":
        return False
    return bool(sys.modules["torch"].cuda.is_current_stream_capturing())


def measure(tensor: Any) -> Any:
    """Return the figures of a tensor as a small one on the same device; None when it has none."""
    torch: Any = sys.modules["torch"]
    flat = _flat(torch, tensor)
    if flat is None:
        return None
    wide = torch.float32 if tensor.device.type in _DEVICES_WITHOUT_DOUBLE else torch.float64
    total = None
    for piece in split(flat, PIECE):
        figures = _measure_piece(torch, piece, wide)
        total = figures if total is None else _add(torch, total, figures)
    return total


def count_not_finite(tensor: Any) -> Any:
    """Return the numbers of NaN and of Inf as a small tensor; None when it can hold neither."""
    torch: Any = sys.modules["torch"]
    flat = _flat(torch, tensor)
    if flat is None or not flat.is_floating_point():
        return None
    counts = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for part in split(flat, PIECE):
        piece = _widen(torch, part)
        # One pass, on the host only as it waits: both ends are NaN when any element is.
        if is_host(flat) and all(math.isfinite(float(end)) for end in torch.aminmax(piece)):
            continue
        counts += torch.stack([torch.isnan(piece).sum(), torch.isinf(piece).sum()])
    return counts


def _flat(torch: Any, tensor: Any) -> Any:
    """Return the elements in one row, without a copy where that can be; None when it has none."""
    if tensor.layout != torch.strided or not tensor.numel() or tensor.is_quantized:
        return None
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)


def _widen(torch: Any, piece: Any) -> Any:
    """Give elements a type in which they can be counted; only types of two bytes are copied."""
    if piece.is_floating_point():
        return piece.float() if piece.element_size() < 4 else piece  # noqa: PLR2004 - bytes
    return piece.to(torch.float64)


def _measure_finite(torch: Any, piece: Any, wider: Any) -> Any:
    """Return the figures of a piece of the host in a few passes, None when not all is finite."""
    low, high = (float(end) for end in torch.aminmax(wider))
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    zero = piece.numel() - int(torch.count_nonzero(wider))
    subnormal = saturated = 0
    if piece.is_floating_point():
        limits = torch.finfo(piece.dtype)
        subnormal = int((wider.abs() < limits.tiny).sum()) - zero
        if limits.max in (high, -low):
            saturated = int((wider.abs() == limits.max).sum())
    total = float(wider.sum(dtype=torch.float64))
    norm = float(torch.linalg.vector_norm(wider, dtype=torch.float64))
    figures = [0, 0, subnormal, saturated, zero, low, high, total, norm * norm]
    return torch.tensor(figures, dtype=torch.float64)


def _measure_piece(torch: Any, piece: Any, wide: Any) -> Any:
    wider = _widen(torch, piece)
    if is_host(piece):
        figures = _measure_finite(torch, piece, wider)
        if figures is not None:
            return figures
    size = wider.abs()
    nan, inf = torch.isnan(wider), torch.isinf(wider)
    good = ~(nan | inf)
    if piece.is_floating_point():
        limits = torch.finfo(piece.dtype)
        subnormal = ((size > 0) & (size < limits.tiny)).sum()
        saturated = (size == limits.max).sum()
    else:
        subnormal = saturated = torch.zeros((), dtype=torch.int64, device=piece.device)
    values = torch.where(good, wider, 0).to(wide)
    return torch.stack(
        [
            one.to(wide)
            for one in (
                nan.sum(), inf.sum(), subnormal, saturated, (size == 0).sum(),
                torch.where(good, wider, math.inf).amin(),
                torch.where(good, wider, -math.inf).amax(),
                values.sum(), (values * values).sum(),
            )
        ]
    )  # fmt: skip


def _add(torch: Any, first: Any, second: Any) -> Any:
    both = first + second
    both[5] = torch.minimum(first[5], second[5])
    both[6] = torch.maximum(first[6], second[6])
    return both


def name_figures(values: list[float], count: int) -> dict[str, Any]:
    """Give figures their names; those of the finite elements are None when there are none."""
    found = dict(zip(_FIELDS, values))
    good = count - int(found["nan"]) - int(found["inf"])
    named: dict[str, Any] = {"nan": int(found["nan"]), "inf": int(found["inf"])}
    named["min"] = _finite(found["min"])
    named["max"] = _finite(found["max"])
    named["mean"] = _finite(found["sum"] / good) if good > 0 else None
    named["norm"] = _finite(math.sqrt(found["squares"])) if good > 0 else None
    for name, field in (
        ("overflow", "inf"), ("underflow", "subnormal"),
        ("saturated", "saturated"), ("zero", "zero"),
    ):  # fmt: skip
        named[name] = found[field] / count if count else 0.0
    return named


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Later:
    """Small tensors on their way from a device; asked by a thread that waits for nothing."""

    def __init__(self, tensors: list[Any], then: Callable[[list[list[float]]], None]) -> None:
        self._then = then
        self._copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._event = _record_event(tensors)

    def __call__(self) -> bool:
        """Hand the values on once they are there; return whether that is done."""
        if self._event is not None and not cuda.has_passed(self._event):
            return False
        self._then([copy.tolist() for copy in self._copies])
        return True


def _record_event(tensors: list[Any]) -> Any:
    """Return an event behind the copies, or None when nothing is on a device."""
    torch: Any = sys.modules["torch"]
    for tensor in tensors:
        if not is_host(tensor):
            kind = getattr(torch, tensor.device.type)
            event = kind.Event()
            # The thread may be at another device.
            event.record(kind.current_stream(tensor.device))
            return event
    return None
