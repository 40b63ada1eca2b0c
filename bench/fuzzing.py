"""What all targets of `make fuzz` share: instrumentation, seeds, options of libFuzzer."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import atheris


def instrumented(*modules: str) -> AbstractContextManager[object]:
    """Follow the ways through modules that are imported in the block, and all below them.

    Comparisons are not followed: atheris never lets go of what one results in, and of arrays these
    are arrays. The reader of dumps took 480 kB more with each run by it, 12 GB after 25,000.
    """
    hooks = atheris.instrument_imports(include=list(modules))
    hooks._trace_dataflow = False  # noqa: SLF001 - there is no parameter for it
    block: AbstractContextManager[object] = hooks
    return block


def fuzz(
    test_one_input: Callable[[bytes], None],
    write_seeds: Callable[[Path], None],
    defaults: Sequence[str],
) -> None:
    """Fuzz until an option ends it; inputs of new ways are kept in the first folder given."""
    with tempfile.TemporaryDirectory(prefix="whystuck-fuzz-") as seeds:
        write_seeds(Path(seeds))
        given = sys.argv[1:]
        folders = [option for option in given if not option.startswith("-")] or [seeds]
        for folder in folders:
            Path(folder).mkdir(parents=True, exist_ok=True)
        options = [option for option in given if option.startswith("-")]
        atheris.Setup([sys.argv[0], *defaults, *options, *folders, seeds], test_one_input)
        atheris.Fuzz()
