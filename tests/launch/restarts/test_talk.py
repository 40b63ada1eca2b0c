"""How nodes of a job talk: real connections among nodes that are threads of one process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.ports import find_port

from whystuck.check.nodes.place import MeetingPlace
from whystuck.launch.restarts.talk.first_node import FirstNode
from whystuck.launch.restarts.talk.other_node import OtherNode
from whystuck.launch.restarts.talk.words import Heard, Left, choose_port

LONG_S = 60.0


def never() -> bool:
    return False


class Talks:
    """Nodes of one job: the first one, and others."""

    def __init__(self, count: int) -> None:
        self.port = find_port(2) + 1
        places = [MeetingPlace("127.0.0.1", self.port, count, rank) for rank in range(count)]
        self.first = FirstNode(places[0], "n0")
        self.others = {rank: OtherNode(places[rank], f"n{rank}") for rank in range(1, count)}
        self.ranks = list(range(count))
        self._pool = ThreadPoolExecutor()

    def open(self) -> None:
        assert self.first.open(LONG_S, print) == ""
        for node in self.others.values():
            assert node.open(LONG_S, print) == ""

    def ask(
        self, rank: int, label: str, wait_s: float = LONG_S, is_over: Callable[[], bool] = never
    ) -> Future[Heard]:
        """Have a node say something, beside the others."""
        node = self.others[rank] if rank else self.first
        return self._pool.submit(
            node.gather, label, f"{label} of {rank}", self.ranks, wait_s, is_over
        )

    def close(self) -> None:
        self.first.close()
        for node in self.others.values():
            node.close()
        self._pool.shutdown()


@pytest.fixture
def three() -> Iterator[Talks]:
    talks = Talks(3)
    talks.open()
    yield talks
    talks.close()


def test_all_nodes_hear_what_all_say_time_after_time(three: Talks) -> None:
    for label in ("end-1", "end-2"):
        heard = [one.result(LONG_S) for one in [three.ask(rank, label) for rank in (2, 0, 1)]]

        told = {rank: f"{label} of {rank}" for rank in range(3)}
        assert [one.told for one in heard] == [told] * 3
        assert not any(one.left or one.missing or one.problem for one in heard)


def test_what_a_node_says_when_it_leaves_is_heard_later_by_all(three: Talks) -> None:
    # GIVEN a node that leaves while nobody listens
    three.others[1].leave("a signal asked for its end", "text")
    heard = [one.result(LONG_S) for one in [three.ask(rank, "end-1") for rank in (0, 2)]]

    for one in heard:
        assert one.left == {1: Left("n1", "a signal asked for its end", "text")}
        assert set(one.told) == {0, 2}


def test_a_node_that_was_killed_has_left_without_a_word(three: Talks) -> None:
    three.others[2].close()
    heard = [one.result(LONG_S) for one in [three.ask(rank, "end-1") for rank in (0, 1)]]

    assert [one.left for one in heard] == [{2: Left("n2")}] * 2
    assert Left().reason == "its `whystuck run` has ended"


def test_a_node_that_leaves_while_it_is_waited_for_is_waited_for_no_more(three: Talks) -> None:
    waits = [three.ask(rank, "end-1") for rank in (0, 1)]
    three.others[2].leave("a signal asked for its end")

    for one in waits:
        assert one.result(LONG_S).left[2].reason == "a signal asked for its end"


@pytest.mark.parametrize("reason", ["a signal asked for its end", ""])
def test_a_first_node_that_leaves_is_waited_for_no_more(three: Talks, reason: str) -> None:
    waits = [three.ask(rank, "end-1") for rank in (1, 2)]
    if reason:
        three.first.leave(reason)
    else:
        three.first.close()

    for rank, one in zip((1, 2), waits, strict=True):
        heard = one.result(LONG_S)
        assert heard.left[0].reason == (reason or Left().reason)
        assert set(heard.told) == {rank}
        # AND it is known from then on
        assert three.ask(rank, "end-2").result(LONG_S).left == heard.left


def test_a_first_node_that_has_left_before_is_known_to_have(three: Talks) -> None:
    three.first.leave("it has ended well there", "text")

    heard = three.ask(1, "end-1").result(LONG_S)
    assert heard.left == {0: Left("n0", "it has ended well there", "text")}


def test_a_node_that_says_nothing_is_missing_and_hears_later_what_was_decided(
    three: Talks,
) -> None:
    heard = [one.result(LONG_S) for one in [three.ask(rank, "end-1", 0.5) for rank in (0, 1)]]
    late = three.ask(2, "end-1")
    while not late.done():
        three.first.greet()

    assert [one.missing for one in heard] == [(2,), (2,)]
    assert 2 not in late.result().told


def test_who_is_told_to_stop_waits_no_longer(three: Talks) -> None:
    is_over = threading.Event()
    waits = [three.ask(rank, "end-1", is_over=is_over.is_set) for rank in (0, 1)]
    is_over.set()

    assert [one.result(LONG_S).problem for one in waits] == ["", ""]


def test_a_first_node_that_does_not_answer_is_told() -> None:
    talks = Talks(2)
    where = f"127.0.0.1:{choose_port(talks.port)}"
    try:
        reason = f"the first node did not answer at {where} within 0.2 s"
        assert talks.others[1].open(0.2, print) == reason
        # Nobody has been there, so it may still come.
        heard = talks.ask(1, "end-1", 0.2, is_over=never)
        assert heard.result(LONG_S).problem == reason
    finally:
        talks.close()


def test_the_first_node_may_come_last() -> None:
    talks = Talks(2)
    opened = threading.Thread(target=talks.others[1].open, args=(LONG_S, print))
    try:
        opened.start()
        talks.first.open(LONG_S, print)
        opened.join(LONG_S)
        heard = [one.result(LONG_S) for one in [talks.ask(rank, "end-1") for rank in (1, 0)]]
        assert [len(one.told) for one in heard] == [2, 2]
    finally:
        talks.close()


def test_a_port_that_somebody_has_is_told() -> None:
    talks = Talks(2)
    with socket.create_server(("", choose_port(talks.port))):
        assert "cannot be opened" in talks.first.open(LONG_S, print)
        assert "cannot be opened" in talks.ask(0, "end-1").result(LONG_S).problem
    talks.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n", b"\n", b"\xff\xfe\n", b"{}\n", b"[1]\n", b"x" * 200_000,
        b'{"rank": 0, "out": "mine"}\n', b'{"rank": 77}\n', b'{"rank": -1, "out": "no"}\n',
    ],
)  # fmt: skip
def test_strangers_at_the_port_are_passed_over(three: Talks, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", choose_port(three.port))) as stranger:
        stranger.sendall(said)
        heard = [one.result(LONG_S) for one in [three.ask(rank, "end-1") for rank in range(3)]]

    assert all(len(one.told) == 3 and not one.left for one in heard)


def test_many_strangers_keep_no_node_out() -> None:
    talks = Talks(2)
    talks.first.open(LONG_S, print)
    place = ("127.0.0.1", choose_port(talks.port))
    with ExitStack() as strangers:
        strangers.callback(talks.close)
        for _ in range(100):
            strangers.enter_context(socket.create_connection(place, timeout=10.0))
        talks.first.greet()
        heard = [one.result(LONG_S) for one in [talks.ask(rank, "end-1") for rank in (1, 0)]]

    assert [len(one.told) for one in heard] == [2, 2]


def test_the_port_is_beside_that_of_the_checks() -> None:
    assert [choose_port(port) for port in (9601, 65535, 1)] == [9600, 65534, 2]
