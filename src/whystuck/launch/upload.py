"""Copying the evidence to a store behind a URL, beside the job and never in its way."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from whystuck.collect.stores import MAX_FILE_BYTES
from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.evidence.writer import EvidenceReader, EvidenceWriter
from whystuck.launch.folder import EvidenceFolder
from whystuck.remote import hide_user_info

FINISH_TIMEOUT_S = 120.0
_PATIENCE_S = 5.0


class Uploader:
    """One thread that copies what has changed in a local evidence folder."""

    def __init__(
        self, writer: EvidenceWriter, url: str, root: Path, say: Callable[[str], None]
    ) -> None:
        self._writer = writer
        self._url = hide_user_info(url)
        self._root = root.absolute()
        self._say = say
        self._copied: dict[str, tuple[int, int]] = {}
        self._wanted: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._below: str | None = None
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
        # The main thread waits for signals; none may end in this one.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def push(self, folder: Path) -> None:
        """Copy a folder soon; called when an incident has a new report."""
        self._wanted.put(folder)

    def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> None:
        """Copy all that is left, and tell where the evidence is."""
        self._wanted.put(self._root)
        self._wanted.put(None)
        self._thread.join(min(_PATIENCE_S, timeout_s))
        if self._thread.is_alive():
            self._say(f"whystuck: copying the evidence to {self._url}\n")
            self._thread.join(max(0.0, timeout_s - _PATIENCE_S))
        if self._thread.is_alive():
            self._problem = f"it was not done after {timeout_s:.0f} s"
        if self._problem:
            self._say(
                f"whystuck: the evidence could not be copied to {self._url}: {self._problem}; "
                f"it is in {self._root}\n"
            )
            self._note_gap()
        elif (self._root / "incidents").is_dir():
            self._say(f"whystuck: the evidence is at {self._url}{self._below or ''}\n")

    def _run(self) -> None:
        while (folder := self._wanted.get()) is not None:
            try:
                self._copy(folder)
                self._problem = ""
            except Exception as error:  # noqa: BLE001 - whatever a store raises: the job goes on
                self._problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]

    def _copy(self, folder: Path) -> None:
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
        gap = Gap(None, "copy of the evidence", f"{self._url}: {self._problem}")
        for incident in self._root.glob("incidents/*"):
            path = incident / records.GAPS_FILE
            with suppress(OSError, msgspec.DecodeError):
                known = msgspec.json.decode(path.read_bytes(), type=list[Gap])
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
