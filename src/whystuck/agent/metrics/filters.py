"""Which devices and mounts are wanted, by patterns of a shell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


class Names:
    """Takes names that match one of ``include``, or all without it, and none of ``exclude``."""

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._include = tuple(include)
        self._exclude = tuple(exclude)

    def has(self, name: str) -> bool:
        """Tell whether a name is wanted."""
        is_in = not self._include or any(fnmatchcase(name, one) for one in self._include)
        return is_in and not any(fnmatchcase(name, one) for one in self._exclude)

    def choose(self, names: Iterable[str]) -> list[str]:
        """Return the names that are wanted."""
        return [name for name in names if self.has(name)]
