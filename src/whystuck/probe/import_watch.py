"""Calling something when a module has been imported."""

from __future__ import annotations

import sys

from .calling.attempts import attempt
from .calling.unseen import leave_out

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable


bootstrap: Any = sys.modules["_frozen_importlib"]
_PYTHONS_FILE = "<frozen importlib._bootstrap_external>"
_FINDS_IN = "<frozen importlib._bootstrap>"


class ImportWatch:
    """Calls once when the import of a module has ended, whichever finder knows the module.

    It stands around the function that asks the finders, and not among them: jobs look at
    `sys.meta_path`, put finders of their own first there, and take others out.

    Many libraries only ask whether a module is there before they import it: it stays in its place
    until the module's own loader has run.
    """

    def __init__(self, names: set[str], call: Callable[[str], None]) -> None:
        """Watch for modules.

        Args:
            names: Their names.
            call: Called with the name of each, in the thread that imports it; may raise.
        """
        self.names = names
        self._call = call

    def start(self) -> None:
        """Watch from now on."""
        _WATCHES.append(self)
        _SEARCH.place()

    def stop(self) -> None:
        """Watch no more."""
        self.names.clear()
        if self in _WATCHES:
            _WATCHES.remove(self)
        if not _WATCHES:
            _SEARCH.remove()

    def see(self, name: str, spec: Any) -> None:
        """Have the loader of a module that was found call us after it has run."""
        attempt(lambda: self._follow(spec.loader, name))

    def _follow(self, loader: Any, name: str) -> None:
        run = loader.exec_module

        def exec_module(module: object) -> None:
            if getattr(module, "__name__", "") != name:  # the loader of a zip file loads them all
                run(module)
                return
            vars(loader).pop("exec_module", None)
            run(module)
            attempt(lambda: self._end(name))

        # Python leaves such frames of its own out of the traceback of an import that fails.
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename=_PYTHONS_FILE, co_name="_call_with_frames_removed"
        )
        loader.exec_module = exec_module

    def _end(self, name: str) -> None:
        if name in self.names:
            self.names.discard(name)
            if not self.names:
                self.stop()
            self._call(name)


class _Search:
    """Our function around Python's own, which asks one finder after the other for a module."""

    def __init__(self) -> None:
        self._original: Any = None
        self._made: Any = None

    def place(self) -> None:
        """Put it in its place, unless it is there, or in one that somebody has put around it."""
        if self._made is None:
            self._original = bootstrap._find_spec
            self._made = bootstrap._find_spec = _tell_of(self._original)

    def remove(self) -> None:
        """Take it out; where others hold it, it stays, and finds nobody to tell."""
        if bootstrap._find_spec is self._made:
            bootstrap._find_spec = self._original
            self._made = None


def _tell_of(original: Any) -> Any:
    """Return a function that finds what the original does, and tells the watches."""

    def find(name: str, path: object, target: object = None) -> object:
        try:
            spec = original(name, path, target)
        except BaseException as error:
            leave_out(error)
            raise
        for watch in _WATCHES:
            # Nothing else of ours runs here: tracers and profilers of the job would see it.
            if name in watch.names and spec is not None:
                watch.see(name, spec)
        return spec

    # As above, and warnings do not count it.
    find.__code__ = find.__code__.replace(co_filename=_FINDS_IN, co_name=original.__name__)
    for field in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(find, field, getattr(original, field))
    return find


_WATCHES: list[ImportWatch] = []
_SEARCH = _Search()
