"""Traces of real jobs, from the request to the file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.agent.ondemand.nodes import iterations_of, node, read_trace

from whystuck.agent.ondemand.finishing import SUFFIX
from whystuck.evidence.agent import TraceRequest, TraceState
from whystuck.read.traces.files import read_trace_file


def test_unmodified_script_is_traced_by_iterations_and_by_time() -> None:
    async def main() -> None:
        async with node() as here:
            here.start_job(
                'train(1); print("stepping", flush=True); train(60)',
                environment={"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "lab"},
            )
            await here.registered()
            (told,) = await here.trace(TraceRequest(id="a1", iterations=3))
            assert told.state is TraceState.WRITTEN, told
            assert told.file == str(here.output / f"lab-rank3-n1-a1{SUFFIX}.gz")
            trace = read_trace(told.file)
            assert trace["distributedInfo"] == {"rank": 3, "world_size": 8}
            assert trace["hostName"] == "n1"
            assert trace["trace_id"] == "a1"
            assert len(iterations_of(trace)) == 3
            read = read_trace_file(Path(told.file))
            assert (read.rank, read.world_size) == (3, 8)
            (told,) = await here.trace(TraceRequest(id="a2", duration_ms=300, packed=False))
            assert told.state is TraceState.WRITTEN, told
            assert told.file.endswith(SUFFIX)
            assert read_trace(told.file)["distributedInfo"]["rank"] == 3
            assert not list((here.folder.parent / "raw").iterdir())

    asyncio.run(main())
