"""Call sites: which lines of the user issued an op, as a number that is found fast."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType

    from .ring import Ring

# As deep as this, frames tell call sites apart; deeper ones cost time at each op.
_MAX_FRAMES = 24
_MAX_SITES = 8192
_UNKNOWN = 0
# Torch marks functions as deprecated with a wrapper of this library.
_WRAPPERS = ("typing_extensions.py",)


class Sites:
    """The call sites of one ring."""

    def __init__(self, ring: Ring) -> None:
        self._add = ring.add
        self._numbers: dict[tuple[int, ...], int] = {}
        # The identity of a code object is a key only while the object lives.
        self._codes: dict[int, CodeType] = {}
        self._hidden = _find_hidden()
        self._standard = os.path.dirname(os.__file__) + os.sep

    def find(self, frame: FrameType | None) -> int:
        """Return the number of the site that a frame and its callers are."""
        first = frame
        places: list[int] = []
        room = _MAX_FRAMES
        while frame is not None and room:
            places.append(id(frame.f_code))
            places.append(frame.f_lasti)
            frame = frame.f_back
            room -= 1
        key = tuple(places)
        number = self._numbers.get(key)
        return self._learn(key, first) if number is None else number

    def _learn(self, key: tuple[int, ...], frame: FrameType | None) -> int:
        if len(self._numbers) >= _MAX_SITES:
            return _UNKNOWN
        frames = []
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            self._codes[id(code)] = code
            if not self._is_hidden(code.co_filename):
                frames.append([code.co_name, code.co_filename, frame.f_lineno or 0])
            frame = frame.f_back
        from .ring import SITE

        number = self._numbers[key] = self._add(SITE, {"frames": frames})
        return number

    def _is_hidden(self, name: str) -> bool:
        """Tell whether a file is torch's, the interpreter's or ours."""
        if name.startswith(self._hidden) or name.endswith(_WRAPPERS):
            return True
        return name.startswith(self._standard) and "-packages" not in name


def _find_hidden() -> tuple[str, ...]:
    torch_dir = os.path.dirname(os.path.abspath(sys.modules["torch"].__file__ or ""))
    own_dir = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return (torch_dir + os.sep, own_dir + os.sep, "<frozen ", "<eval_with_key>")
