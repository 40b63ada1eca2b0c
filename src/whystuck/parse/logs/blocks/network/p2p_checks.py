"""What CUDA's sample simpleP2P prints where devices read wrong data from each other.

`Verification error @ element 1: val = 0.000000, ref = 4.000000`. Only texts of the size that people
paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import parse_line

_WRONG = re.compile(
    rb"\bVerification error @ element \d{1,12}: val = [-+.\dinfae]{1,40}, ref = [-+.\de]{1,40}"
)
# Other samples check what they compute alone in the same words.
_PEERS = re.compile(
    rb"\bcudaMemcpyPeer\b|\bpeer access between GPU\d|\bRun kernel on GPU\d{1,2}, taking source "
    rb"data from GPU\d"
)
# Lines of one run stand no further apart.
_NEAR_BYTES = 4096


def find_p2p_checks(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find the first element that a test of direct access between devices finds wrong.

    Args:
        data: The text.
        row: The number of its first line.
    """
    wrong = _WRONG.search(data) if b"Verification error @ element" in data else None
    if wrong is None or not _PEERS.search(data, max(0, wrong.start() - _NEAR_BYTES), wrong.start()):
        return
    begin = data.rfind(b"\n", 0, wrong.start()) + 1
    at = row + data.count(b"\n", 0, begin)
    yield TabledSeen("table.p2p_wrong", at, parse_line(data[begin : wrong.end()]), {})
