"""Looks at the opcodes of a pickle before it is loaded, and refuses what no dump needs.

A few bytes can ask the unpickler for gigabytes (a number far off in its memo), for endless depth
(tuples in tuples, which are hashed one in the other), or for a class. One regular expression walks
over all opcodes but texts at the speed of C, so that a sound dump pays little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.errors import ParseError

# The unpickler makes room for every number up to twice the largest: here at most 64 MiB.
_LOW_MEMO = rb"r..[\x00-\x3f]\x00"
_LONGS = b"|".join(b"\\x8a\\x%02x.{%d}" % (size, size) for size in range(17))
_HARMLESS = (
    rb"[hKq].|[N\x88\x89\]})(ustea\x85-\x87\x94]|M..|\x8a\x08.{8}|[jJ].{4}|"
    + _LOW_MEMO
    + rb"|G.{8}|\x80[\x02-\x05]|\x95.{8}|"
    + _LONGS
)
_SHORT_TEXTS = b"|".join(b"\\x%02x\\x00{3}.{%d}" % (size, size) for size in range(64))
_OPCODES = re.compile(rb"(?s:" + _HARMLESS + rb")*+")
_OPCODES_AND_TEXTS = re.compile(rb"(?s:" + _HARMLESS + rb"|X(?:" + _SHORT_TEXTS + rb"))*+")
# Opcodes of texts and bytes, and how many bytes tell their length.
_LENGTH_BYTES = {ord("X"): 4, 0x8C: 1, 0x8D: 8, ord("C"): 1, ord("B"): 4, 0x8E: 8}
_STOP = ord(".")
# At these the unpickler stops and names what was asked for; all before them is harmless.
_ASKS_FOR_CODE = {ord("c"), ord("i"), 0x93, ord("P"), ord("Q")}
_TUPLES = (b"\x85", b"\x86", b"\x87", b"t")
_CONTAINERS = (b"]", b"}", b")")
_FEW_TUPLES = 1_000
_MAX_TUPLES = 1_000_000
# A container takes 64 bytes where its opcode takes one; sound dumps have one in 20 bytes.
_MAX_CONTAINERS = 65536
_MAX_CONTAINERS_SHARE = 0.25


def check_pickle(data: bytes) -> int:
    """Look at the opcodes of a pickle.

    Args:
        data: The pickle.

    Returns:
        How deep tuples in it can be nested at most.

    Raises:
        ParseError: It could take memory out of all proportion, or is no pickle of plain values.
    """
    for _span in _find_opcodes(data, _OPCODES_AND_TEXTS):
        pass
    # Bytes of texts and numbers are counted too: an upper limit, which mostly is enough.
    if _count(_CONTAINERS, data) > _limit_containers(data) and (
        _count_exactly(_CONTAINERS, data) > _limit_containers(data)
    ):
        raise ParseError("the pickle holds little but empty containers")
    tuples = _count(_TUPLES, data)
    if tuples > _FEW_TUPLES:
        tuples = _count_exactly(_TUPLES, data)
    if tuples > _MAX_TUPLES:
        raise ParseError(f"the pickle holds more than {_MAX_TUPLES} tuples")
    return tuples


def _find_opcodes(data: bytes, opcodes: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    """Walk over the pickle, and tell where the spans between its texts are."""
    position = 0
    while True:
        match = opcodes.match(data, position)
        start, position = position, match.end() if match else position
        yield start, position
        opcode = data[position] if position < len(data) else _STOP
        if opcode not in _LENGTH_BYTES:
            break
        position = _skip_text(data, position, _LENGTH_BYTES[opcode])
    if opcode != _STOP and opcode not in _ASKS_FOR_CODE:
        raise ParseError(f"not a readable pickle of plain values (opcode {opcode:#04x})")


def _count_exactly(opcodes: tuple[bytes, ...], data: bytes) -> int:
    return sum(_count(opcodes, data, *span) for span in _find_opcodes(data, _OPCODES))


def _count(opcodes: tuple[bytes, ...], data: bytes, *span: int) -> int:
    return sum(data.count(opcode, *span) for opcode in opcodes)


def _limit_containers(data: bytes) -> int:
    return max(_MAX_CONTAINERS, int(len(data) * _MAX_CONTAINERS_SHARE))


def _skip_text(data: bytes, position: int, length_bytes: int) -> int:
    start = position + 1 + length_bytes
    length = int.from_bytes(data[position + 1 : start], "little")
    if start + length > len(data):
        raise ParseError("the pickle ends in the middle of a text")
    return start + length
