"""Reads the datagrams of Kineto's clients and answers them, on the event loop of the agent.

Answers leave from the listening socket only, never block, and are exactly as long as their head
says: anything else would end the training process that gets them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec

from whystuck.agent.fabric.addresses import SO_TIMESTAMPNS, Address, FabricAddress
from whystuck.agent.fabric.messages import (
    MAX_MESSAGE_BYTES,
    Context,
    MessageError,
    Request,
    pack_count,
    pack_reply,
    parse_message,
)
from whystuck.agent.interfaces import FabricHandler, FabricPoll
from whystuck.evidence.errors import UsageError

_Control = tuple[int, int, bytes]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_LOG = logging.getLogger(__name__)

_MAX_READS: Final = 64
"""Datagrams that are read before other tasks of the loop get their turn."""
_BURST_S: Final = 0.002
_CHECK_EVERY_S: Final = 2.0
_REAP_EVERY_S: Final = 30.0
_LATE_NS: Final = 80_000_000
"""A client waits 90 ms for an answer, and reads a later one at its next poll: from then on it
would always be one answer behind."""
# Plain numbers: the flags of `socket` are objects in Python, and slow to compare.
_DONT_WAIT: Final = int(socket.MSG_DONTWAIT)
_IS_CUT: Final = int(socket.MSG_TRUNC)
_CREDENTIALS: Final = struct.Struct("@iII")
_TIMESPEC: Final = struct.Struct("@qq")
_NS_A_SECOND: Final = 1_000_000_000
# For these two and nothing else: open files that somebody passes find no room and are closed.
_CONTROL_BYTES: Final = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_TIMESPEC.size)
_MAX_REMEMBERED: Final = 4096
_MAX_TOLD: Final = 16
_NOTHING_TO_DO: Final = pack_reply("")


class FabricCounts(msgspec.Struct, kw_only=True):
    """What has come in and gone out since the start.

    ``garbage`` are datagrams that no Kineto client sends, ``foreign`` those of other users,
    ``misplaced`` those of clients that an answer would harm. ``unsent`` answers found a client gone
    or its buffer full, ``late`` came after the client had stopped waiting. ``failed`` counts
    errors of our own.
    """

    polls: int = 0
    contexts: int = 0
    answers: int = 0
    configs: int = 0
    garbage: int = 0
    foreign: int = 0
    misplaced: int = 0
    unsent: int = 0
    late: int = 0
    failed: int = 0
    remade: int = 0
    reaped: int = 0


class _Known(NamedTuple):
    """What a client said last, and who the kernel says that it is."""

    data: bytes
    request: Request
    control: list[_Control]


class FabricEndpoint:
    """A datagram socket for Kineto's clients; `start` and `close` are called in the loop's thread.

    ``handler`` says what a client is to do. Senders of another user are not answered unless
    ``any_uid``. When the folder of the socket goes, both are made anew, and ``on_remade`` is
    called: what else lay there is to be made anew, too. ``problem`` tells why that fails, and is
    empty when nothing does. ``repeat`` takes address and time of a poll that says what the one
    before it said, and tells whether there is nothing to do: then ``handler`` is not asked.
    """

    def __init__(
        self,
        handler: FabricHandler,
        address: FabricAddress,
        *,
        any_uid: bool = False,
        on_remade: Callable[[], None] | None = None,
        repeat: Callable[[Address, int], bool] | None = None,
    ) -> None:
        self.counts = FabricCounts()
        self.problem = ""
        self._handler = handler
        self._address = address
        self._uid = -1 if any_uid else os.getuid()
        self._on_remade = on_remade
        self._repeat = repeat
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reap_at_s = 0.0
        self._read_s = float("-inf")
        self._told: set[str] = set()
        # What each client said last, which it says again and again.
        self._known: OrderedDict[Address, _Known] = OrderedDict()
        # Clients with an answer that they have not read, and when it was sent, those whose file
        # is gone, and who uses which GPU; oldest first, as each is bounded.
        self._behind: OrderedDict[Address, int] = OrderedDict()
        self._gone: OrderedDict[Address, None] = OrderedDict()
        self._users: OrderedDict[tuple[int, int, int], None] = OrderedDict()

    def start(self) -> None:
        """Listen; raises UsageError when the place is another's, OSError when it cannot be had."""
        self._open()
        self._plan()

    def close(self) -> None:
        """Stop listening, and leave no file behind: a client of a dead socket would wait long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._address.close()
        self._close_socket()

    def _open(self) -> None:
        bound = self._address.open()
        try:
            asyncio.get_running_loop().add_reader(bound.fileno(), self._read)
        except (OSError, RuntimeError):
            bound.close()
            self._address.close()
            raise
        self._socket = bound

    def _close_socket(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    # ---------------------------------------------------------------------------- looking after

    def _plan(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY_S, self._look_after)

    def _look_after(self) -> None:
        """Make the socket anew where it was removed, and take away what dead clients left."""
        self._plan()
        try:
            if self._socket is None or self._address.is_lost():
                self._remake()
            now_s = time.monotonic()
            if now_s >= self._reap_at_s:
                self._reap_at_s = now_s + _REAP_EVERY_S
                self.counts.reaped += self._address.reap()
        except (UsageError, OSError) as error:
            if str(error) != self.problem:
                _LOG.warning("the socket of Kineto's clients cannot be made anew: %s", error)
            self.problem = str(error)

    def _remake(self) -> None:
        self._close_socket()
        self._address.close()
        self._open()
        self.problem = ""
        self.counts.remade += 1
        _LOG.info("the socket of Kineto's clients was gone and is made anew")
        if self._on_remade is not None:
            self._on_remade()

    # -------------------------------------------------------------------------------- datagrams

    def _read(self) -> None:
        """Read what has come, as much as others in the loop can wait for.

        Polls mostly come one by one, and to look for another one costs as much as to read it. If
        there is one, the loop calls again at once, and then all are read.
        """
        now_s = time.monotonic()
        num_reads = _MAX_READS if now_s - self._read_s < _BURST_S else 1
        self._read_s = now_s
        for _ in range(num_reads):
            if self._socket is None:
                return
            try:
                data, control, flags, client = self._socket.recvmsg(
                    MAX_MESSAGE_BYTES, _CONTROL_BYTES, _DONT_WAIT
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.counts.failed += 1
                return
            if client is not None and self._take_repeat(data, control, client):
                continue
            try:
                self._take(data, control, flags, client)
            except MessageError:
                self.counts.garbage += 1

    def _take_repeat(self, data: bytes, control: list[_Control], client: Address) -> bool:
        """Answer a poll like the last one of this client; False when there is more to it.

        An idle node does nothing else, and each line of Python costs some microseconds after a
        pause.
        """
        known = self._known.get(client)
        if known is None or known.data != data or known.control != control[1:]:
            return False
        if client in self._behind or client in self._gone or self.counts.remade:
            return False
        seconds, nanoseconds = _TIMESPEC.unpack(control[0][2])
        now_ns = time.time_ns()
        if now_ns - seconds * _NS_A_SECOND - nanoseconds >= _LATE_NS:
            return False
        if self._repeat is None or not self._repeat(client, now_ns):
            return False
        self.counts.polls += 1
        self._send(_NOTHING_TO_DO, client)
        return True

    def _take(
        self,
        data: bytes,
        control: list[_Control],
        flags: int,
        client: Address | None,
    ) -> None:
        pid, uid, sent_ns = _read_control(control)
        if self._uid not in {-1, uid}:
            self.counts.foreign += 1
            return
        known = self._known.get(client) if client is not None else None
        if client is not None and known is not None and known.data == data:
            self._take_request(known.request, client, pid, uid, sent_ns)
            return
        if flags & _IS_CUT:
            raise MessageError("longer than any message of a client")
        message = parse_message(data)
        if client is None or not self._address.may_answer(client):
            self._pass_over(client, pid)
        elif isinstance(message, Request):
            _remember(self._known, client, _Known(data, message, _rest_of(control)))
            self._take_request(message, client, pid, uid, sent_ns)
        else:
            self._take_context(message, client, pid)

    def _pass_over(self, client: Address | None, pid: int) -> None:
        """Leave a client alone that an answer would end, and say so once."""
        self.counts.misplaced += 1
        place = client.rpartition("/")[0] if isinstance(client, str) else "an abstract address"
        if client is None:
            place = "a socket without an address"
        if place not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(place)
            _LOG.warning(
                "pid %d asks from %s and gets no answer, which would end its process: its "
                "KINETO_IPC_SOCKET_DIR must be %s",
                pid,
                place,
                self._address.wanted,
            )

    def _take_request(
        self, request: Request, client: Address, pid: int, uid: int, sent_ns: int
    ) -> None:
        self.counts.polls += 1
        now_ns = time.time_ns()
        is_late = 0 < sent_ns < now_ns - _LATE_NS
        if self._is_unread(client, sent_ns, is_late=is_late):
            return
        poll = FabricPoll(
            address=client,
            pid=pid,
            uid=uid,
            told_pids=request.pids,
            job_number=request.job_number,
            wants=request.wants,
            time_ns=now_ns,
            can_answer=not self._is_gone(client),
        )
        config = self._ask(poll)
        if not poll.can_answer:
            self.counts.unsent += 1
        elif self._send(self._pack(config), client):
            self.counts.configs += config != ""
            if is_late:
                self.counts.late += 1
                _remember(self._behind, client, now_ns)

    def _is_unread(self, client: Address, sent_ns: int, *, is_late: bool) -> bool:
        """Whether a client has an answer before it: another one would be unread in its turn."""
        answered_ns = self._behind.get(client)
        if answered_ns is None:
            return False
        if sent_ns <= answered_ns:
            return True  # one of several polls that waited for us while we were held up
        # With this poll it has read that answer.
        del self._behind[client]
        return not is_late

    def _ask(self, poll: FabricPoll) -> str:
        try:
            return self._handler.answer(poll)
        except Exception:  # noqa: BLE001 - a fault of ours in one answer must not end the service
            if not self.counts.failed:
                _LOG.exception("a poll of pid %d could not be answered", poll.pid)
            self.counts.failed += 1
        return ""

    def _is_gone(self, client: Address) -> bool:
        if client not in self._gone and not self.counts.remade:
            return False
        return self._address.is_gone(client)

    def _pack(self, config: str) -> bytes:
        if not config:
            return _NOTHING_TO_DO
        try:
            return pack_reply(config)
        except ValueError as error:
            self.counts.failed += 1
            _LOG.warning("%s; the process gets none", error)
            return _NOTHING_TO_DO

    def _take_context(self, context: Context, client: Address, pid: int) -> None:
        self.counts.contexts += 1
        _remember(self._users, (context.job_number, context.gpu, pid or context.pid), None)
        users = [one for one in self._users if one[:2] == (context.job_number, context.gpu)]
        living = [one for one in users if os.path.lexists(f"/proc/{one[2]}")]
        for user in set(users) - set(living):
            del self._users[user]
        self._send(pack_count(len(living)), client)

    def _send(self, answer: bytes, client: Address) -> bool:
        if self._socket is None:
            return False
        try:
            self._address.send(self._socket, answer, client)
        except OSError as error:
            # Full, or ended since; its next poll, if there is one, is answered again.
            self.counts.unsent += 1
            if isinstance(error, FileNotFoundError):
                _remember(self._gone, client, None)
            return False
        self._gone.pop(client, None)
        self.counts.answers += 1
        return True


def _rest_of(control: list[_Control]) -> list[_Control]:
    """Return who sent a message, where the time is what comes before it; else what never comes."""
    is_stamped = bool(control) and control[0][:2] == (socket.SOL_SOCKET, SO_TIMESTAMPNS)
    is_whole = is_stamped and len(control[0][2]) == _TIMESPEC.size
    return control[1:] if is_whole and len(control) > 1 else [(-1, -1, b"")]


def _read_control(control: list[_Control]) -> tuple[int, int, int]:
    """Return pid and uid of the sender and the time in ns when it sent: 0, -1, 0 when unknown."""
    pid, uid, sent_ns = 0, -1, 0
    for level, kind, data in control:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_CREDENTIALS and len(data) == _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack(data)
        elif kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            sent_ns = seconds * _NS_A_SECOND + nanoseconds
    return pid, uid, sent_ns


def _remember(table: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > _MAX_REMEMBERED:
        table.popitem(last=False)
