"""The user's source files that appear in stacks, kept beside them.

The text of a line says more than its number, and rules read the loops and branches around it.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path, PurePosixPath

import msgspec

from whystuck.collect.source_reader import SourceReader
from whystuck.evidence.archive import shorten
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.records import (
    PROC_FILE,
    SOURCES_DIR,
    SOURCES_INDEX_FILE,
    ProcRecord,
    SourceIndex,
)

_PYTHON_PATH = re.compile(rb"/[\x20-\x21\x23-\x7e\x80-\xff]{1,1024}?\.py(?![\w.])")
_LIBRARY_PART = re.compile(r"/(?:site-packages|dist-packages|lib/python3\.\d+)/|/whystuck/probe/")
_MAX_FILES = 200
_ARTIFACTS = (
    "stacks-*.json",
    "fr.pickle",
    "exception.json",
    "thread-errors.json",
    "leaving.json",
    "skipped.json",
    "fatal.txt",
    "faulthandler.txt",
    "profiler-stacks.json",
)


def find_user_files(incident: Path) -> set[str]:
    """Return the paths of user source files named by the artifacts of an incident."""
    found: set[str] = set()
    for pattern in _ARTIFACTS:
        for artifact in incident.rglob(pattern):
            try:
                data = artifact.read_bytes()
            except OSError:
                continue
            found.update(match.decode(errors="replace") for match in _PYTHON_PATH.findall(data))
    own_library = sysconfig.get_path("stdlib") + "/"
    silent = _find_silent_mounts(incident)
    return {
        path
        for path in found
        if not _LIBRARY_PART.search(path)
        and not path.startswith(own_library)
        and not any(PurePosixPath(path).is_relative_to(mount) for mount in silent)
    }


def _find_silent_mounts(incident: Path) -> set[str]:
    """Return the mounts that ranks wait for: who looks for a file there may wait with them."""
    found: set[str] = set()
    for artifact in incident.rglob(PROC_FILE):
        try:
            record = decode_json(artifact.read_bytes(), ProcRecord)
        except (OSError, msgspec.DecodeError):
            continue
        waits = (wait for sample in record.samples for wait in sample.file_waits)
        found.update(wait.mount for wait in waits if wait.is_remote and wait.mount)
    return found


def collect_sources(incident: Path, reader: SourceReader | None = None) -> None:
    """Copy those files into ``sources/``, with an index from path to copy.

    Args:
        incident: The folder of the incident.
        reader: Who reads them; left out, they are read as by this user.
    """
    index = SourceIndex()
    folder = incident / SOURCES_DIR
    paths = sorted(find_user_files(incident))[:_MAX_FILES]
    texts = (reader or SourceReader()).read_all(paths)
    for number, path in enumerate(paths):
        text = texts.get(path)
        if text is None:
            continue
        try:
            folder.mkdir(exist_ok=True)
            name = f"{number:03d}-{shorten(PurePosixPath(path).name)}"
            (folder / name).write_bytes(text)
        except OSError:
            continue
        index.files[path] = name
    if index.files:
        (folder / SOURCES_INDEX_FILE).write_bytes(msgspec.json.encode(index))
