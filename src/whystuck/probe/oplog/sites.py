"""Call sites: which lines of the user issued an op, as a number that is found fast."""

from __future__ import annotations

import os
import sys

from .ring import SITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

    from .ring import Ring

    # Code and place of the user's innermost frame, those of its caller, and those of callers
    # further out, one after the other, in a tuple; None and 0 where there is no such frame.
    Places = tuple[Any, ...]

# As deep as this, frames tell call sites apart; deeper ones cost time at each op.
_MAX_FRAMES = 24
_MAX_SITES = 8192
_MAX_CODES = 65536
NOWHERE: Places = (None, 0, None, 0, None)
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
        self._short_numbers: dict[tuple[Any, ...], int] = {}
        # Identities of code objects of the user, and of others, that are kept.
        self.users: set[int] = set()
        self._others: set[int] = set()
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
        number = self._numbers[key] = self._add(SITE, {"frames": frames})
        return number

    def walk(self, frame: FrameType | None) -> Places:
        """Return the places of a call, of which ``frame`` is the innermost; none without a user."""
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if id(frame.f_code) not in self._others and self.is_user(frame.f_code):
                return self.take(frame)
            frame = frame.f_back
        return NOWHERE

    def take(self, frame: FrameType) -> Places:
        """Return the places of a frame of the user and its callers; no frame is kept."""
        back = frame.f_back
        if back is None:
            return frame.f_code, frame.f_lasti, None, 0, None
        return frame.f_code, frame.f_lasti, back.f_code, back.f_lasti, self.go_on(back)

    # Without a loop, which would take twice as long.
    def go_on(self, frame: FrameType) -> Any:
        """Return the places of up to four callers of a frame, None when there are none."""
        first = frame.f_back
        if first is None:
            return None
        second = first.f_back
        if second is None:
            return first.f_code, first.f_lasti
        third = second.f_back
        if third is None:
            return first.f_code, first.f_lasti, second.f_code, second.f_lasti
        fourth = third.f_back
        places = (
            first.f_code, first.f_lasti, second.f_code, second.f_lasti, third.f_code, third.f_lasti
        )  # fmt: skip
        return places if fourth is None else (*places, fourth.f_code, fourth.f_lasti)

    def number(self, places: Places) -> int:
        """Return the number of the site that places are."""
        code, at, caller, called_at, further = places
        key: tuple[Any, ...] = (id(code), at, id(caller), called_at)
        if further:
            key += (*map(id, further[::2]), *further[1::2])
        number = self._short_numbers.get(key)
        return self._learn_places(key, places) if number is None else number

    def _learn_places(self, key: tuple[Any, ...], places: Places) -> int:
        if len(self._short_numbers) >= _MAX_SITES:
            return _UNKNOWN
        flat = places[:4] + (places[4] or ())
        frames = []
        for code, at in zip(flat[::2], flat[1::2]):
            self._codes[id(code)] = code
            if code is not None and not self._is_hidden(code.co_filename):
                frames.append([code.co_name, code.co_filename, _find_line(code, at)])
        number = self._short_numbers[key] = self._add(SITE, {"frames": frames})
        return number

    def is_user(self, code: CodeType) -> bool:
        """Tell whether a code object is the user's, and remember that."""
        if id(code) in self.users:
            return True
        is_user = not self._is_hidden(code.co_filename)
        if len(self._codes) < _MAX_CODES:
            self._codes[id(code)] = code
            (self.users if is_user else self._others).add(id(code))
        return is_user

    def _is_hidden(self, name: str) -> bool:
        """Tell whether a file is torch's, the interpreter's or ours."""
        if name.startswith(self._hidden) or name.endswith(_WRAPPERS):
            return True
        return name.startswith(self._standard) and "-packages" not in name


def _find_line(code: CodeType, at: int) -> int:
    """Return the line of an instruction, 0 when it has none."""
    for start, end, line in code.co_lines():
        if start <= at < end:
            return line or 0
    return 0


def _find_hidden() -> tuple[str, ...]:
    torch_dir = os.path.dirname(os.path.abspath(sys.modules["torch"].__file__ or ""))
    own_dir = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return (torch_dir + os.sep, own_dir + os.sep, "<frozen ", "<eval_with_key>")
