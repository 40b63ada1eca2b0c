"""The crash of PyTorch's flight-recorder tutorial: rank 0 makes one all_reduce too many.

Both ranks reduce ``[3, 4]`` twice; rank 0 alone then reduces ``[4, 5]``; both go on as before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.dumps import DONE, GLOO, NCCL, SCHEDULED, STARTED, Dumps
from tests.diagnose.scenes import MODULE, at
from tests.parse.dumps.builders import as_pickle

from whystuck.evidence.finding import Verdict
from whystuck.evidence.ops.collectives import Frame
from whystuck.pipeline import diagnose_paths

CRASH = "/job/crash.py"
EXTRA_LINE = 39
COMMON = (at(CRASH, 44, "main"), MODULE)
EXTRA = (at(CRASH, EXTRA_LINE, "main"), MODULE)
USUAL: dict[str, Any] = {"input_sizes": [[3, 4]], "output_sizes": [[3, 4]]}
ODD: dict[str, Any] = {"input_sizes": [[4, 5]], "output_sizes": [[4, 5]]}


def crash(form: str, version: str, first: tuple[Frame, ...]) -> Dumps:
    dumps = Dumps(2, form=form, version=version)
    dumps.op([0, 1], "all_reduce", first, times=2, **USUAL)
    # NCCL does not compare sizes: the third op of each rank meets the other's, and completes.
    state = DONE if form == NCCL else STARTED
    dumps.op([0], "all_reduce", EXTRA, state=state, **ODD)
    dumps.op([0, 1], "all_reduce", COMMON, state=state, **USUAL)
    dumps.op([1], "all_reduce", COMMON, state=state, **USUAL)
    return dumps.op([0], "all_reduce", COMMON, state=SCHEDULED, **USUAL)


@pytest.mark.parametrize("first", [COMMON, (at(CRASH, 34, "main"), MODULE)], ids=["one", "two"])
@pytest.mark.parametrize("version", ["2.5", "2.10"])
@pytest.mark.parametrize("form", [NCCL, GLOO])
def test_rank_0_and_the_line_of_its_extra_call_are_named(
    form: str, version: str, first: tuple[Frame, ...], tmp_path: Path
) -> None:
    dumps = crash(form, version, first)
    for rank in (0, 1):
        content = dumps.dump(rank)
        if version == "2.5":
            content.pop("comm_lib_version")
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(content))
    report = diagnose_paths([tmp_path])

    [finding] = report.findings
    assert (finding.code, finding.culprits.ranks) == ("H102", [0])
    assert (finding.where[0].file, finding.where[0].line) == (CRASH, EXTRA_LINE)
    assert report.verdict is Verdict.STUCK
