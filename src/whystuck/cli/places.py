"""Where evidence is kept: a folder, or a URL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from whystuck.evidence.finding import Gap


def choose_place(evidence: str | None) -> tuple[Path, str]:
    """Return the local folder for the value of ``--evidence``, and the URL to copy it to.

    The URL is empty where there is none; ``file://`` is the folder itself.
    """
    from whystuck.launch.folder import default_folder
    from whystuck.remote import local_path

    folder = local_path(evidence) if evidence else default_folder()
    return (folder, "") if folder is not None else (default_folder(), evidence or "")


@contextmanager
def on_disk(paths: Sequence[str]) -> Iterator[tuple[list[str], list[Gap]]]:
    """Give paths on disk for paths and URLs; what a URL holds lies there for the time of the block.

    Raises UsageError for a URL that cannot be read. The gaps are what was left out.
    """
    from whystuck.collect.stores import fetch_evidence
    from whystuck.remote import is_url, local_path

    with tempfile.TemporaryDirectory(prefix="whystuck-") as scratch:
        found, gaps = [], []
        for number, path in enumerate(paths):
            local = local_path(path)
            if local is not None:
                found.append(str(local) if is_url(path) else path)
                continue
            target = Path(scratch) / str(number)
            target.mkdir()
            gaps += [Gap(None, "evidence", text) for text in fetch_evidence(path, target)]
            found.append(str(target))
        yield found, gaps
