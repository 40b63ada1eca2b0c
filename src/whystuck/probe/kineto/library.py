"""What is asked of Kineto inside ``libtorch_cpu.so``, which has no Python interface for it.

All of it is looked up by name when it is made: a torch that lacks one part is left alone.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager

from ..threads import KeepsSignalsBack

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterator

SILENT = 99
# torch 2.10 is the first whose Kineto starts without the races that end a process now and then.
FIRST_TORCH = (2, 10)
_POINTERS_OF_API = 2
_ERRORS_ONLY = 2
_NO_BACKWARD = -1
# What Kineto may do when it is asked by a daemon; only for the moment in which it starts.
_DAEMON_ENV = b"KINETO_USE_DAEMON"
_LEVEL_ENV = b"KINETO_LOG_LEVEL"


class Library:
    """The part of Kineto that polls an agent, in this process."""

    def __init__(self, path: str) -> None:
        """Find the functions in the library at ``path``.

        Raises OSError, AttributeError or ValueError for one that is not as it is known.
        """
        library = ctypes.CDLL(path)  # torch has loaded it: this is the same one
        self._libc = ctypes.CDLL(None)
        self._libc.setenv.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)
        self._libc.unsetenv.argtypes = (ctypes.c_char_p,)
        self._init = library.libkineto_init
        self._init.argtypes, self._init.restype = (ctypes.c_bool, ctypes.c_bool), None
        self._api = library._ZN9libkineto3apiEv
        self._loader = library._ZN9libkineto12ConfigLoader8instanceEv
        self._api.restype = self._loader.restype = ctypes.c_void_p
        self._stop_thread = library._ZN9libkineto12ConfigLoader10stopThreadEv
        self._stop_thread.argtypes, self._stop_thread.restype = (ctypes.c_void_p,), None
        self._use_default_level = library.suppressLibkinetoLogMessages
        self._use_default_level.restype = None
        # Without letting go of the interpreter: it is asked after each step.
        direct = ctypes.PyDLL(path)
        self._has_callbacks = direct._ZN2at18hasGlobalCallbacksEv
        self._is_noting = direct._ZN2at23isRecordFunctionEnabledEv
        for ask in (self._has_callbacks, self._is_noting):
            ask.argtypes, ask.restype = (), ctypes.c_bool
        self._backward_id = direct._ZN5torch8autograd25get_current_graph_task_idEv
        self._backward_id.argtypes, self._backward_id.restype = (), ctypes.c_int
        self._set_noting = direct._ZN2at20enableRecordFunctionEb
        self._set_noting.argtypes, self._set_noting.restype = (ctypes.c_bool,), None
        c10 = ctypes.CDLL(os.path.join(os.path.dirname(path), "libc10.so"))
        self._torch_level = ctypes.c_int.in_dll(c10, "FLAGS_caffe2_log_level")
        self._level = ctypes.c_int.in_dll(library, "_ZN9libkineto6Logger14severityLevel_E")
        if self._read_api()[0] != self._loader():
            raise ValueError("this Kineto is laid out in another way")

    @property
    def is_used(self) -> bool:
        """Whether a profiler is registered already: to register another one would be an error."""
        return self._read_api()[1] is not None

    @property
    def is_collecting(self) -> bool:
        """Whether something looks at the ops of all threads, as a trace on demand does."""
        return bool(self._has_callbacks())

    @property
    def is_noting(self) -> bool:
        """Whether ops of this thread are told to whoever looks at them."""
        return bool(self._is_noting())

    @property
    def is_in_backward(self) -> bool:
        """Whether this thread is in a backward pass, as the hooks of tensors are."""
        return int(self._backward_id()) != _NO_BACKWARD

    def set_noting(self, *, is_on: bool) -> None:
        """Let ops of this thread be told, or not."""
        self._set_noting(is_on)

    def start(self, *, is_cpu_only: bool, is_quiet: bool) -> None:
        """Let Kineto poll from now on.

        The variables that make it do so are there for this moment only, and only for C: a child
        that inherited them would poll, too. ``is_quiet`` keeps its messages back.
        """
        self._libc.setenv(_DAEMON_ENV, b"1", 1)
        if is_quiet:
            self._libc.setenv(_LEVEL_ENV, str(SILENT).encode(), 1)
        try:
            with KeepsSignalsBack():  # it starts a thread
                self._init(is_cpu_only, False)
        finally:
            self._libc.unsetenv(_DAEMON_ENV)
            if is_quiet:
                self._libc.unsetenv(_LEVEL_ENV)

    def set_variable(self, name: str, value: str) -> None:
        """Set a variable that Kineto reads again at each poll; Python's ``os.environ`` lacks it."""
        self._libc.setenv(name.encode(), os.fsencode(value), 1)

    def drop_variable(self, name: str) -> None:
        """Take back what `set_variable` has set."""
        self._libc.unsetenv(name.encode())

    def stop(self) -> None:
        """End the thread that polls."""
        self._stop_thread(self._loader())

    def set_level(self, level: int) -> None:
        """Choose what is logged: `SILENT` is nothing."""
        self._level.value = level

    def use_default_level(self) -> int:
        """Log what torch lets Kineto log when a job profiles itself, and return that level."""
        self._use_default_level()
        return self._level.value

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Keep back the warnings of torch's C++ for a moment: some tell of what we do."""
        before, level = self._torch_level.value, self._level.value
        self._torch_level.value = max(before, _ERRORS_ONLY)
        self._level.value = SILENT
        try:
            yield
        finally:
            self._torch_level.value, self._level.value = before, level

    def leave_child(self) -> None:
        """Let a forked child end: its copy of Kineto would wait for a thread that is not there.

        C writes out its streams and the process ends, without the destructors of libraries. Python
        has ended by then, and a child of ``multiprocessing`` never comes there.
        """
        # Called in the opposite order.
        self._libc.on_exit(self._libc._exit, None)
        self._libc.on_exit(self._libc.fcloseall, None)

    def _read_api(self) -> list[int | None]:
        return list((ctypes.c_void_p * _POINTERS_OF_API).from_address(self._api()))


def find_library(torch_file: str) -> str:
    """Return where the library of an installed torch lies."""
    return os.path.join(os.path.dirname(torch_file), "lib", "libtorch_cpu.so")


def is_known_good(version: str) -> bool:
    """Tell whether Kineto of a torch version can be started late, and without races."""
    numbers = version.split("+", maxsplit=1)[0].split(".")
    try:
        return (int(numbers[0]), int(numbers[1])) >= FIRST_TORCH
    except (ValueError, IndexError):
        return False
