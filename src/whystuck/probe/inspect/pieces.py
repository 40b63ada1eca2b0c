"""Parts of a tensor, of which one after the other is looked at."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Elements. What is made of a part is freed at once: megabytes between what the job allocates leave
# holes in its heap, 16 MiB after 50 starts of `weights`. 512 KiB find their place again.
HOST_PIECE = 1 << 16


def split(flat: Any, most: int) -> Iterator[Any]:
    """Yield the parts of a tensor of one dimension, each of ``most`` elements on a device.

    Those of the host are smaller; on a device each part costs launches of kernels.
    """
    size = get_size(flat.device, most)
    for start in range(0, flat.numel(), size):
        yield flat[start : start + size]


def get_size(device: Any, most: int) -> int:
    """Return the elements of a part on a device, ``most`` but on the host."""
    return min(most, HOST_PIECE) if device.type == "cpu" else most
