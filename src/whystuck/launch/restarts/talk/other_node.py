"""Any other node of a job: it talks with the first one."""

from __future__ import annotations

import errno
import json
import secrets
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from whystuck.check.apart import start_apart, wait_apart
from whystuck.check.nodes.place import MeetingPlace
from whystuck.evidence.decoding import decode_json
from whystuck.launch.link import wait_readable
from whystuck.launch.restarts.talk.words import (
    Heard,
    Left,
    Peer,
    Word,
    choose_port,
    keep_alive,
)

_MAX_ANSWER_BYTES = 32 << 20
_MOST_ADDRESSES = 4
_LOOK_S = 0.1
_RETRY_S = 0.3
_QUIET_S = 5.0
_CONNECT_S = 1.0
_RESOLVE_S = 5.0
# The first node may begin to wait later than this one.
_SLACK_S = 5.0


class OtherNode:
    """The talk of any other node: with the first one."""

    def __init__(self, place: MeetingPlace, node: str) -> None:
        """Open nothing yet."""
        self._place = place
        self._word = Word(place.rank, node, key=secrets.token_hex(16))
        self._addresses: list[tuple[int, Any]] = []
        self._peer: Peer | None = None
        # Since then, one that cannot be reached has left.
        self._has_met = False
        self._first: Left | None = None
        self._refused = ""

    def open(
        self,
        wait_s: float,
        on_wait: Callable[[str], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> str:
        """Connect to the first node; return why that could not be within some time.

        Args:
            wait_s: For how long to try.
            on_wait: Called once, with where that is, when it takes longer than a moment.
            is_over: Asked again and again whether to leave it.
        """
        begun_s = time.monotonic()
        has_said = False
        while self._connect() is None and not is_over():
            waited_s = time.monotonic() - begun_s
            if waited_s >= wait_s:
                return self._say_silent(wait_s)
            if waited_s >= _QUIET_S and not has_said:
                has_said = True
                on_wait(self._where)
            time.sleep(_RETRY_S)
        return ""

    def greet(self) -> None:
        """Connect, if the first node is there."""
        if self._peer is None:
            self._connect()

    def gather(
        self,
        label: str,
        text: str,
        ranks: Sequence[int],
        wait_s: float,
        is_over: Callable[[], bool],
    ) -> Heard:
        """Say something, and hear what all say; see `FirstNode.gather`."""
        del ranks  # the first node knows
        told = {self._place.rank: text}
        word = msgspec.structs.replace(self._word, label=label, text=text)
        said: Peer | None = None
        until_s = time.monotonic() + wait_s + _SLACK_S
        while self._first is None and not is_over() and time.monotonic() < until_s:
            peer = self._peer or self._connect()
            if peer is None:
                time.sleep(_RETRY_S)
                continue
            if said is not peer:
                said = peer
                peer.send(msgspec.json.encode(word))
            if (heard := self._hear(peer, label)) is not None:
                return heard
        if self._first is not None:
            return Heard(label, told, {0: self._first})
        return Heard(label, told, problem="" if is_over() else self._say_silent(wait_s))

    def leave(self, reason: str, text: str = "") -> None:
        """Tell the first node that this one leaves the job, and close."""
        peer = self._peer or (self._connect() if self._first is None else None)
        if peer is not None:
            word = msgspec.structs.replace(self._word, out=reason, text=text)
            peer.send(msgspec.json.encode(word))
            # What nobody has read would have the kernel take back what was said.
            list(peer.read_lines(_MAX_ANSWER_BYTES))
        self.close()

    def close(self) -> None:
        """Close the connection without a word, as a process does that was forked."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    @property
    def _where(self) -> str:
        return f"{self._place.host}:{choose_port(self._place.port)}"

    def _say_silent(self, wait_s: float) -> str:
        return (
            self._refused or f"the first node did not answer at {self._where} within {wait_s:g} s"
        )

    def _hear(self, peer: Peer, label: str) -> Heard | None:
        """Listen for a moment; return the answer to what was said, if it has come."""
        answer = None
        if wait_readable(peer.end.fileno(), _LOOK_S):
            for line in peer.read_lines(_MAX_ANSWER_BYTES):
                heard = _decode_answer(line)
                if heard.label == label:
                    answer = heard
                elif not heard.label:
                    self._take_greeting(heard)
        if peer.is_closed:
            self.close()
            time.sleep(_RETRY_S if answer is None and self._first is None else 0.0)
        return answer

    def _take_greeting(self, heard: Heard) -> None:
        """Take what the first node says without being asked."""
        if 0 in heard.left:
            self._first = heard.left[0]
        self._refused = heard.problem
        if heard.job and self._word.job not in ("", heard.job):
            self._first = Left()  # that was started anew, and is another job's
        elif heard.job:
            self._word = msgspec.structs.replace(self._word, job=heard.job)

    def _connect(self) -> Peer | None:
        """Connect to the first node; where nobody listens any more, it has left."""
        if not self._addresses:
            self._addresses = _resolve(self._place.host, choose_port(self._place.port))
        for family, address in self._addresses:
            problem, connected = _connect(family, address)
            if connected is not None:
                self._has_met = True
                self._peer = Peer(connected)
                self._peer.send(msgspec.json.encode(self._word))
                return self._peer
            if problem == errno.ECONNREFUSED and self._has_met:
                self._first = Left()
        return None


def _resolve(host: str, port: int) -> list[tuple[int, Any]]:
    """Return the addresses of a host; a name server that is silent holds up nobody."""

    def work(tell: Callable[[bytes], None]) -> None:
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            tell(json.dumps([family, address]).encode())

    with suppress(OSError):
        for done in wait_apart([start_apart(work, _RESOLVE_S)]):
            found = [json.loads(line) for line in done.lines[:_MOST_ADDRESSES]]
            return [(family, tuple(address)) for family, address in found]
    return []


def _connect(family: int, address: Any) -> tuple[int, socket.socket | None]:  # noqa: ANN401 - by family
    """Connect within a second; return the error, or the connection."""
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        return error.errno or 0, None
    made.settimeout(0)
    problem = made.connect_ex(address)
    if problem == errno.EINPROGRESS:
        poller = select.poll()
        poller.register(made, select.POLLOUT)
        is_done = poller.poll(int(_CONNECT_S * 1000))
        problem = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if is_done else problem
    if problem:
        made.close()
        return problem, None
    keep_alive(made)
    return 0, made


def _decode_answer(line: bytes) -> Heard:
    try:
        return decode_json(line, Heard)
    except ValueError:
        return Heard()
