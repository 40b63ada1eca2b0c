"""The terminal of a rank whose output the supervisor reads: a pair of its own.

It has the size of the real one. It controls no session: programs that ask which process group is in
the foreground, to tell whether they are, are answered by the one that does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import termios

from .calling.unseen import leave_out, replace_builtin

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any

_CONTROLLING = "/dev/tty"


def copy_size(from_fd: int, to_fd: int) -> None:
    """Give a terminal the size of another one, before anybody asks for it."""
    size = fcntl.ioctl(from_fd, termios.TIOCGWINSZ, bytes(8))
    fcntl.ioctl(to_fd, termios.TIOCSWINSZ, size)


def answer_for(fds: list[int]) -> None:
    """Have the terminal of this process answer in place of those behind ``fds``."""
    ours = [os.fstat(fd).st_rdev for fd in fds if os.isatty(fd)]
    ask = os.tcgetpgrp
    if not ours:
        return

    def tcgetpgrp(*args: Any, **keywords: Any) -> int:
        try:
            return ask(*args, **keywords)
        except BaseException as error:
            found = _ask_controlling(error, ours, *args)
            if found is None:
                leave_out(error)
                raise
            return found

    def _ask_controlling(error: BaseException, ours: list[int], fd: Any = -1) -> int | None:
        if getattr(error, "errno", 0) != errno.ENOTTY or os.fstat(fd).st_rdev not in ours:
            return None
        try:
            opened = os.open(_CONTROLLING, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None  # it has none
        try:
            return ask(opened)
        finally:
            os.close(opened)

    replace_builtin(os, "tcgetpgrp", tcgetpgrp)
