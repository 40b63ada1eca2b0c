"""Writes model and optimizer state in pieces, as fast as the disk takes them."""

import io
import os
import tempfile
import time
from typing import Any

import torch

from _train.stamp import stamp

PIECE = 1 << 20
PAUSE = 0.25


def save_checkpoint(state: dict[str, Any], seconds: float) -> int:
    stamp()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue().ljust(PIECE, b"\0")
    written = 0
    end = time.monotonic() + seconds
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        while time.monotonic() < end:
            written += write_piece(file.fileno(), content[:PIECE])  # <- here
    return written


def write_piece(descriptor: int, piece: bytes) -> int:
    written = os.write(descriptor, piece)  # <- here
    os.fsync(descriptor)  # <- here
    time.sleep(PAUSE)  # <- here
    return written
