"""Where the counts of the garbage collector are, as the interpreter itself tells them."""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys

from whystuck.probe.collector import find_collector


def test_counts_at_the_address_are_those_of_the_collector() -> None:
    address = find_collector()
    assert address
    gc.disable()
    try:
        descriptor = os.open("/proc/self/mem", os.O_RDONLY)
        *counts, is_running = struct.unpack("9ni", os.pread(descriptor, 76, address))
        told = [one[name] for one in gc.get_stats() for name in one]
    finally:
        gc.enable()
        os.close(descriptor)

    assert counts == told
    assert not is_running


def test_nothing_is_found_where_the_job_has_lists_of_its_own() -> None:
    code = (
        "import gc\n"
        "gc.garbage, gc.callbacks = [], []\n"
        "from whystuck.probe.collector import find_collector\n"
        "print(find_collector())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert done.stdout.strip() == "0"
