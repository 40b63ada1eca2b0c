"""The heaps of the allocator of a process with threads, as the kernel lists them."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ALLOCATE = """
import ctypes, sys, threading
from whystuck.collect.processes.allocator import return_memory, use_one_arena
if sys.argv[1] == "one":
    use_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)
def work():
    together.wait()
    for _ in range(1000):
        libc.malloc(100)  # without the GIL, unlike objects of Python
    together.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for one in threads: one.start()
for one in threads: one.join()
return_memory()
ends = [line.split()[0].split("-") for line in open("/proc/self/maps")]
# glibc reserves 64 MiB for each arena, at an address of which that is a divisor.
print(sum(int(begin, 16) % (64 << 20) == 0 for begin, _ in ends))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_threads_share_one_heap() -> None:
    counts = [
        int(subprocess.check_output([sys.executable, "-c", ALLOCATE, how]))
        for how in ("all", "one")
    ]
    assert counts[0] > 2
    assert counts[1] <= 1  # by chance


LARGE = """
import ctypes, sys
from whystuck.collect.processes.allocator import use_one_arena
if sys.argv[1] == "one":
    use_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.free(libc.malloc(8 << 20))  # after it, glibc takes blocks up to this size from the heap
block = libc.malloc(4 << 20)
ends = [line.split()[0].split("-") for line in open("/proc/self/maps") if "[heap]" in line]
print(any(int(begin, 16) <= block < int(end, 16) for begin, end in ends))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_large_blocks_lie_outside_of_the_heap() -> None:
    lies_in_heap = [
        subprocess.check_output([sys.executable, "-c", LARGE, how], text=True).strip()
        for how in ("all", "one")
    ]
    assert lies_in_heap == ["True", "False"]
