"""What a trace on demand holds of what was asked for."""

from __future__ import annotations

import msgspec

from whystuck.evidence.agent import TraceRequest

NO_MEMORY = (
    "torch puts no allocations into a trace on demand: it tells them only to a profiler that the "
    "job starts itself, such as torch.profiler.profile(profile_memory=True)"
)
NO_FLOPS = (
    "torch writes no counts of floating-point operations into a trace: shapes of inputs, by which "
    "they can be counted, are there with {shapes}"
)
NO_MODULES = "torch records modules with Python stacks only: ask for {stacks}"


def add_needed(request: TraceRequest) -> TraceRequest:
    """Return the request with what its options need: torch ignores them otherwise."""
    return msgspec.structs.replace(
        request,
        stacks=request.stacks or request.modules,
        shapes=request.shapes or request.flops,
    )


def list_missing(request: TraceRequest) -> list[str]:
    """Say what a request of our own asks for, and no trace on demand can hold."""
    notes = [NO_MEMORY] if request.memory else []
    return [*notes, NO_FLOPS.format(shapes="--flops")] if request.flops else notes
