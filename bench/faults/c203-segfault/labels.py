"""Labels as the C side hands them out."""

import ctypes

from _train.stamp import stamp
from _train.training import Job


def read_label(job: Job, step: int) -> bytes:
    buffer = ctypes.create_string_buffer(b"label")
    address = ctypes.addressof(buffer)
    if job.turn(step):
        stamp()
        address = 0
    return ctypes.string_at(address)  # <- here
