"""Copying the evidence to a store behind a URL, beside the job and never in its way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from whystuck.collect.stores import MAX_FILE_BYTES
from whystuck.evidence import records
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.finding import Gap
from whystuck.evidence.writer import EvidenceReader, EvidenceWriter
from whystuck.guarded.remote import hide_user_info
from whystuck.launch.incidents.copies import FINISH_TIMEOUT_S, BackgroundCopy
from whystuck.launch.incidents.folder import EvidenceFolder


class Uploader(BackgroundCopy):
    """Copies what has changed in a local evidence folder."""

    def __init__(
        self, writer: EvidenceWriter, url: str, root: Path, say: Callable[[str], None]
    ) -> None:
        self._writer = writer
        self._copied: dict[str, tuple[int, int]] = {}
        self._below: str | None = None
        super().__init__(hide_user_info(url), root, say)

    def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> bool:
        """Copy all that is left, and tell where the evidence is."""
        is_there = super().finish(timeout_s)
        if not is_there:
            self._note_gap()
        elif (self._root / "incidents").is_dir():
            self._say(f"whystuck: the evidence is at {self._where}{self._below or ''}\n")
        return is_there

    def _list_left(self) -> Iterable[Path]:
        return [self._root]

    def _copy(self, folder: Path, is_last: bool) -> None:  # noqa: ARG002, FBT001 - all is kept
        if self._below is None:
            self._below = self._choose_place()
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(self._root).as_posix()
            state = _state_of(path)
            if state is None or self._copied.get(name) == state:
                continue
            try:
                data = path.read_bytes()
            except OSError:
                continue  # gone since: an incident that was dropped
            self._writer.write((self._below + "/" + name).lstrip("/"), data)
            self._copied[name] = state

    def _choose_place(self) -> str:
        """Return the folder below the URL: one of our own where another job has written."""
        if not isinstance(self._writer, EvidenceReader):
            return ""
        with suppress(FileNotFoundError):
            for path, _ in self._writer.list_files():
                if path == records.JOB_FILE or path.startswith("incidents/"):
                    return f"/{self._root.name}"
        return ""

    def _note_gap(self) -> None:
        gap = Gap(None, "copy of the evidence", f"{self._where}: {self._problem}")
        for incident in self._root.glob("incidents/*"):
            path = incident / records.GAPS_FILE
            with suppress(OSError, msgspec.DecodeError):
                known = decode_json(path.read_bytes(), list[Gap])
                path.write_bytes(msgspec.json.encode([*known, gap]))


@contextmanager
def copying(
    store: EvidenceWriter | None, url: str, evidence: EvidenceFolder, say: Callable[[str], None]
) -> Iterator[None]:
    """Copy an evidence folder while the block runs, and the rest when it ends.

    Args:
        store: Where to; None to copy nothing.
        url: Its name for the user.
        evidence: The folder.
        say: Prints a text for the user.
    """
    if store is None:
        yield
        return
    uploader = Uploader(store, url, evidence.root, say)
    evidence.on_report = uploader.push
    try:
        yield
    finally:
        uploader.finish()


def _state_of(path: Path) -> tuple[int, int] | None:
    """Return size and time of a file worth copying."""
    try:
        status = path.stat()
    except OSError:
        return None
    is_ours = path.is_file() and ".part-" not in path.name and status.st_size <= MAX_FILE_BYTES
    return (status.st_size, status.st_mtime_ns) if is_ours else None
