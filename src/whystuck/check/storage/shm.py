"""Shared memory, in which data-loader workers hand batches over (N403)."""

from __future__ import annotations

import os
import tempfile

from whystuck.check.check import Check, Context
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_CODE = "N403"
_PLACE = "/dev/shm"  # noqa: S108 - the very folder that is checked
_MB = 1 << 20
_REMEDIES = (
    "start the container with `--shm-size 8g` or more, or with `--ipc host`",
    "Kubernetes: an `emptyDir` with `medium: Memory`, mounted at /dev/shm",
    "remove what dead jobs have left there: `ls -l /dev/shm`",
)


class Shm(Check):
    """Whether ``/dev/shm`` can be written, and how much room it has."""

    name = "shm"
    codes = (_CODE,)

    def run(self, context: Context) -> CheckResult:
        """Write a file, and look how much is free."""
        try:
            with tempfile.TemporaryFile(dir=_PLACE) as file:
                file.write(b"whystuck" * 512)
                file.flush()
            room = os.statvfs(_PLACE)
        except OSError as error:
            reason = error.strerror or str(error)
            problem = CheckProblem(
                code=_CODE,
                severity="error",
                text=f"{_PLACE} cannot be written: {reason}",
                subject=_PLACE,
                remedies=_REMEDIES,
                details={"reason": reason},
            )
            return self.make_result([problem])
        free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        least = context.policy.shm.min_free_mb
        problems = []
        if free < least * _MB:
            problems.append(
                CheckProblem(
                    code=_CODE,
                    text=f"{_PLACE} has {free // _MB} MB free of {size // _MB} MB, below "
                    f"{least} MB",
                    subject=_PLACE,
                    remedies=_REMEDIES,
                    measures={"free_mb": free / _MB, "size_mb": size / _MB, "threshold_mb": least},
                )
            )
        figures = {"free_mb": free / _MB, "size_mb": size / _MB}
        facts = {"free": f"{free / 1e9:.1f} of {size / 1e9:.1f} GB"}
        return self.make_result(problems, facts=facts, figures=figures)
