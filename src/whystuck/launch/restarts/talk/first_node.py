"""The first node of a job: it hears the others, and tells all of them what it has heard."""

from __future__ import annotations

import secrets
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from whystuck.check.nodes.place import MeetingPlace
from whystuck.evidence.decoding import decode_json
from whystuck.launch.restarts.talk.words import (
    Heard,
    Left,
    Peer,
    Word,
    choose_port,
    keep_alive,
)

_MAX_WORD_BYTES = 1 << 16
# Beyond the nodes of the job: whoever else finds the port.
_MORE_PEERS = 64
_LOOK_S = 0.1
# Nobody reads while the command runs: all that come meanwhile have to fit, strangers too.
_BACKLOG = 4096
# A node is ahead of this one by two or three.
_MOST_LABELS = 16


class FirstNode:
    """The talk of node rank 0: it hears the others.

    Whoever speaks first as a node is that node, by its key, as long as it is connected. Others
    that say to be it are told so, and nothing that they say is heard.
    """

    def __init__(self, place: MeetingPlace, node: str) -> None:
        """Open nothing yet."""
        self._place = place
        self._node = node
        self._listener: socket.socket | None = None
        self._peers: dict[int, Peer] = {}
        self._words: dict[str, dict[int, str]] = {}
        self._answers: dict[str, bytes] = {}
        self._left: dict[int, Left] = {}
        self._keys: dict[int, str] = {}
        self._problem = ""
        self._job = secrets.token_hex(16)

    def open(
        self,
        wait_s: float,
        on_wait: Callable[[str], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> str:
        """Let the others connect from now on; return why they cannot."""
        del wait_s, on_wait, is_over  # they come when they come
        port = choose_port(self._place.port)
        try:
            self._listener = _listen(port)
            self._listener.settimeout(0)
        except OSError as error:
            self._problem = f"port {port} cannot be opened: {error.strerror or error}"
        return self._problem

    def greet(self) -> None:
        """Take those that have come."""
        self._pump(0.0)

    def gather(
        self,
        label: str,
        text: str,
        ranks: Sequence[int],
        wait_s: float,
        is_over: Callable[[], bool],
    ) -> Heard:
        """Hear what other nodes say, and tell it to all.

        Args:
            label: What about.
            text: What this node has to say.
            ranks: Who is waited for.
            wait_s: For how long.
            is_over: Asked again and again whether to leave it.
        """
        words = self._words.setdefault(label, {})
        words[0] = text
        if self._listener is None:
            return Heard(label, dict(words), problem=self._problem)
        until_s = time.monotonic() + wait_s
        self._pump(0.0)
        while (waits := self._list_silent(words, ranks)) and not is_over():
            if time.monotonic() >= until_s:
                break
            self._pump(_LOOK_S)
        if is_over():  # this node is about to say why it leaves
            return Heard(label, dict(words))
        left = {rank: self._left[rank] for rank in ranks if rank in self._left.keys() - words}
        heard = Heard(label, dict(words), left, tuple(waits))
        self._answers[label] = msgspec.json.encode(heard)
        for peer in list(self._peers.values()):
            if peer.rank in words and not peer.send(self._answers[label]):
                self._drop(peer)
        return heard

    def leave(self, reason: str, text: str = "") -> None:
        """Tell those who are there that this node leaves the job, and close."""
        self._pump(0.0)
        answer = msgspec.json.encode(Heard(left={0: Left(self._node, reason, text)}))
        for peer in self._peers.values():
            if peer.rank > 0:
                peer.send(answer)
        self.close()

    def close(self) -> None:
        """Close everything without a word, as a process does that was forked."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _list_silent(self, words: Mapping[int, str], ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if rank not in words and rank not in self._left]

    def _pump(self, timeout_s: float) -> None:
        """Accept, and read, for a moment."""
        if self._listener is None:
            return
        poller = select.poll()  # not select, which knows no descriptor above 1023
        listeners = [self._listener.fileno()] if self._has_room() else []
        for fd in (*listeners, *self._peers):
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(int(timeout_s * 1000)):
            if fd in self._peers:
                self._read(self._peers[fd])
            else:
                self._accept(self._listener)

    def _accept(self, listener: socket.socket) -> None:
        while self._has_room():
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            accepted.settimeout(0)
            keep_alive(accepted)
            self._peers[accepted.fileno()] = peer = Peer(accepted)
            self._read(peer)

    def _has_room(self) -> bool:
        """Return whether there is room for one more; one that says nothing gives way."""
        if len(self._peers) < self._place.nodes + _MORE_PEERS:
            return True
        silent = next((peer for peer in self._peers.values() if peer.rank < 0), None)
        if silent is not None:
            self._drop(silent)
        return silent is not None

    def _read(self, peer: Peer) -> None:
        for line in peer.read_lines(_MAX_WORD_BYTES):
            self._hear(peer, line)
        if peer.is_closed:
            self._drop(peer)

    def _hear(self, peer: Peer, line: bytes) -> None:
        try:
            word = decode_json(line, Word)
        except ValueError:
            word = Word(-1)
        if not self._know(peer, word):
            peer.is_closed = True
            return
        if word.out:
            self._left[word.rank] = Left(word.node, word.out, word.text)
            return
        self._left.pop(word.rank, None)
        if not word.label:
            return
        # Who comes too late hears what the others have heard.
        if answer := self._answers.get(word.label):
            peer.send(answer)
        else:
            self._note(word)

    def _note(self, word: Word) -> None:
        """Keep what a node says, but for what no node would say."""
        words = self._words.keys() - self._answers.keys()
        ahead = sum(word.rank in self._words[label] for label in words)
        if ahead < _MOST_LABELS:
            self._words.setdefault(word.label, {})[word.rank] = word.text

    def _know(self, peer: Peer, word: Word) -> bool:
        """Return whether a word is from the node that it names; the first one greets it."""
        if peer.rank >= 0:
            return (word.rank, word.key) == (peer.rank, self._keys[peer.rank])
        if not 0 < word.rank < self._place.nodes or not word.key:
            return False  # a stranger
        if word.job not in ("", self._job):  # it belongs to an earlier start
            peer.send(self._greeting)
            return False
        before = self._find(word.rank)
        if before is not None:
            # What it has said before it went may be there, and its end.
            self._read(before)
            if word.key != self._keys[word.rank] and not before.is_closed:
                problem = f"the first node knows another node rank {word.rank}: {before.node}"
                peer.send(msgspec.json.encode(Heard(problem=problem, job=self._job)))
                return False
        self._keys[word.rank] = word.key
        peer.rank, peer.node = word.rank, word.node
        if before is not None:  # it has come back, and its kernel did not say that it went
            self._drop(before)
        peer.send(self._greeting)
        return not peer.is_closed

    @property
    def _greeting(self) -> bytes:
        return msgspec.json.encode(Heard(job=self._job))

    def _find(self, rank: int) -> Peer | None:
        return next((peer for peer in self._peers.values() if peer.rank == rank), None)

    def _drop(self, peer: Peer) -> None:
        self._peers.pop(peer.end.fileno(), None)
        peer.close()
        # It may have come back by another connection.
        if peer.rank > 0 and self._find(peer.rank) is None:
            self._left.setdefault(peer.rank, Left(peer.node))


def _listen(port: int) -> socket.socket:
    """Open a port at all addresses."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server(("", port), backlog=_BACKLOG)
