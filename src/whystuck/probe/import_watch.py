"""Calling something when a module has been imported."""

from __future__ import annotations

import sys

from .attempts import attempt
from .interrupts import let_through

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from types import FrameType
    from typing import Callable


_PYTHONS_FILE = "<frozen importlib._bootstrap_external>"


class ImportWatch:
    """A finder that finds nothing itself, and calls once when the import of a module has ended.

    Many libraries only ask whether a module is there before they import it: it stays in its place
    until the module's own loader has run.
    """

    def __init__(self, names: set[str], call: Callable[[str], None]) -> None:
        """Watch for modules.

        Args:
            names: Their names.
            call: Called with the name of each, in the thread that imports it; may raise.
        """
        self._names = names
        self._call = call
        self._is_asking = False

    def start(self) -> None:
        """Watch from now on."""
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def stop(self) -> None:
        """Watch no more.

        The finder stays where it is, and finds nothing, while somebody goes through the finders: he
        would pass by the next one, and not find a module that this one knows.
        """
        self._names.clear()
        if self in sys.meta_path and not _is_finding():  # type: ignore[comparison-overlap]
            sys.meta_path.remove(self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Return the module's own spec, whose loader calls us after it has run."""
        del path, target
        if name not in self._names or self._is_asking:
            return None
        self._is_asking = True
        try:
            from importlib.util import find_spec

            spec = find_spec(name)
            if spec is not None and spec.loader is not None:
                self._follow(spec.loader, name)
        except Exception as error:  # the finders after us find it, or say what is wrong
            let_through(error)
            return None
        finally:
            self._is_asking = False
        return spec

    def _follow(self, loader: object, name: str) -> None:
        run = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: object) -> None:
            del loader.exec_module  # type: ignore[attr-defined]
            run(module)
            attempt(lambda: self._end(name))

        # Python leaves such frames of its own out of the traceback of an import that fails.
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename=_PYTHONS_FILE, co_name="_call_with_frames_removed"
        )
        loader.exec_module = exec_module  # type: ignore[attr-defined]

    def _end(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            if not self._names:
                self.stop()
            self._call(name)


def _is_finding() -> bool:
    """Return whether a thread looks for a module."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_name == "_find_spec":
                return True
            frame = frame.f_back
    return False
