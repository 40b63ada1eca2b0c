"""N424 gemm-wrong."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class GemmWrong(CheckRule):
    """The same matrix product gives other bits.

    ## What it means

    The device computes wrongly now and then: silent data corruption.

    ## How it is found

    One product with the same operands is made again and again; all bits must be the same.

    ## False alarms

    A library that chooses another kernel for the same product; torch does not between calls.

    ## What to do

    Take the node out of service, and have the device replaced.
    """

    code = "N424"
    name = "gemm-wrong"
    remedies: ClassVar[tuple[str, ...]] = (
        "take the node out of service; `dcgmi diag -r 3` for the repair",
    )
