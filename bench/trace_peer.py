"""What HTA does with traces, in the environment that `traces.py` makes for it.

Run by the Python of that environment: `trace_peer.py PART FILE...`. It prints one line of JSON.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from collections.abc import Callable
from typing import Any


def cpu_seconds() -> float:
    """Seconds of CPU of this process and those that it has waited for."""
    uses = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def load(files: dict[int, str]) -> Any:  # noqa: ANN401 - of the other library
    """Load traces as its users do."""
    from hta.trace_analysis import TraceAnalysis

    return TraceAnalysis(trace_files=files)


def measure_load(files: dict[int, str]) -> dict[str, float]:
    """Measure the load of some files."""
    import hta.trace_analysis  # noqa: F401 - the import does not count

    before = cpu_seconds()
    analysis = load(files)
    seconds = cpu_seconds() - before
    return {"seconds": seconds, "events": sum(map(len, analysis.t.traces.values()))}


PARTS: dict[str, Callable[[dict[int, str]], dict[str, float]]] = {"load": measure_load}


def main() -> None:
    """Measure a part."""
    logging.disable(logging.CRITICAL)
    part, *names = sys.argv[1:]
    print(json.dumps(PARTS[part](dict(enumerate(names)))))


if __name__ == "__main__":
    main()
