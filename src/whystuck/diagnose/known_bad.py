"""Versions of libraries that are known to hang, to crash or to compute wrongly: data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownBad:
    """A range of versions with a known fault.

    Attributes:
        first: The first bad version.
        last: The last bad version.
        trouble: What happens, after "NCCL VERSION".
        fixed: The version that has it no more.
        around: What to do without an upgrade, or empty.
        source: Where it is told.
    """

    first: str
    last: str
    trouble: str
    fixed: str
    around: str
    source: str


NCCL: tuple[KnownBad, ...] = (
    KnownBad(
        "2.14.3",
        "2.16.5",
        "hangs where CUDA_LAUNCH_BLOCKING=1 is set",
        "2.17.1",
        "unset CUDA_LAUNCH_BLOCKING",
        "https://github.com/NVIDIA/nccl/issues/750, https://github.com/pytorch/pytorch/pull/97843",
    ),
    KnownBad(
        "2.18.1",
        "2.18.1",
        "may corrupt data with the Tree algorithm and LL128 where a card shares its switch with "
        "one device only, and hangs in bfloat16 reductions with SHARP",
        "2.18.3",
        "export NCCL_PROTO=^LL128",
        "https://docs.nvidia.com/deeplearning/nccl/release-notes/rel_2-18-1.html",
    ),
    KnownBad(
        "2.19.3",
        "2.19.3",
        "may crash at the end of a process: its proxy thread runs on while memory is taken back",
        "2.19.4",
        "",
        "https://github.com/NVIDIA/nccl/issues/1013",
    ),
    KnownBad(
        "2.25.1",
        "2.25.1",
        "may hang in ncclCommAbort, so that ranks do not end after a failure",
        "2.26.2",
        "",
        "https://github.com/pytorch/pytorch/pull/149546",
    ),
    KnownBad(
        "2.27.7",
        "2.27.7",
        "may crash in its RAS thread",
        "",
        "export NCCL_RAS_ENABLE=0",
        "https://github.com/NVIDIA/nccl/issues/1996",
    ),
    KnownBad(
        "2.29.2",
        "2.29.2",
        "may hang",
        "2.29.3",
        "",
        "https://github.com/NVIDIA/nccl/releases/tag/v2.29.3-1, "
        "https://github.com/pytorch/pytorch/pull/174338",
    ),
)


def parse_version(text: str) -> tuple[int, ...]:
    """Read a dotted version; what is no number ends it."""
    parts: list[int] = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        parts.append(int(part))
    return tuple(parts)


def find_known_bad(version: str) -> tuple[KnownBad, ...]:
    """Return what is known to be wrong with a version of NCCL."""
    number = parse_version(version)
    return tuple(
        row for row in NCCL if parse_version(row.first) <= number <= parse_version(row.last)
    )
