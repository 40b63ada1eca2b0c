"""The C library behind the tokenizer; its memory management aborts at a pointer freed twice."""

import ctypes

from _train.stamp import stamp
from _train.training import Job

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p
LIBC.free.argtypes = [ctypes.c_void_p]


def encode(job: Job, step: int) -> None:
    buffer = LIBC.malloc(64 + step)
    if job.turn(step):
        stamp()
        buffer += 8
    LIBC.free(buffer)  # <- here
