"""How nodes of a job talk: real connections among nodes that are threads of one process."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

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

    def ask_early(self, rank: int) -> Future[Heard]:
        """Have a node say something that the first one has heard when this returns."""
        asked = self.ask(rank, "end-1")
        while rank not in self.first._words.get("end-1", {}):
            self.first.greet()
        return asked

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
    heard = [one.result(LONG_S) for one in [three.ask_early(1), three.ask(0, "end-1", 0.5)]]
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


# ---------------------------------------------------------- who says to be a node, and is it not


def call(talks: Talks, *words: object) -> socket.socket:
    """Connect as a stranger who knows how nodes talk."""
    stranger = socket.create_connection(("127.0.0.1", choose_port(talks.port)), LONG_S)
    stranger.sendall(b"".join(json.dumps(word).encode() + b"\n" for word in words))
    return stranger


def hear_all(talks: Talks, label: str = "end-1") -> list[Heard]:
    return [one.result(LONG_S) for one in [talks.ask(rank, label) for rank in talks.ranks]]


OUT = {"rank": 1, "node": "n1", "out": "it was me"}
LIE = {"rank": 1, "node": "n1", "label": "end-1", "text": "a lie"}


@pytest.mark.parametrize(
    "words",
    [
        [OUT], [LIE], [{"rank": 1}, OUT], [{"rank": 1, "key": ""}, OUT], [{**OUT, "key": "x"}],
        [{"rank": 0}, OUT], ["?", LIE], [{"rank": 99}, OUT], [{**LIE, "job": "another"}],
    ],
)  # fmt: skip
def test_a_stranger_is_not_believed_what_it_says_for_a_node_that_is_there(
    three: Talks, words: list[object]
) -> None:
    with call(three, *words):
        three.first.greet()
        heard = hear_all(three)

    told = {rank: f"end-1 of {rank}" for rank in three.ranks}
    assert [one.told for one in heard] == [told] * 3
    assert not any(one.left or one.missing for one in heard)


def test_a_node_speaks_for_itself_alone() -> None:
    # GIVEN a connection that is node rank 2 to the first node
    talks = Talks(3)
    talks.first.open(LONG_S, print)
    talks.others[1].open(LONG_S, print)
    with call(talks, {"rank": 2, "node": "n2", "key": "k"}, {**OUT, "key": "k"}):
        heard = [one.result(LONG_S) for one in [talks.ask(rank, "end-1") for rank in (0, 1)]]
    talks.close()

    # THEN what it says for another one is not heard, and it is a stranger from then on
    assert [set(one.told) for one in heard] == [{0, 1}] * 2
    assert [one.left for one in heard] == [{2: Left("n2")}] * 2


def test_a_node_that_connects_anew_is_known(three: Talks) -> None:
    # GIVEN a connection of which the first node does not see the end
    peer = three.others[1]._peer
    assert peer is not None
    with peer.end.dup():
        three.others[1].close()
        heard = hear_all(three)

    assert [len(one.told) for one in heard] == [3] * 3


def test_another_node_of_a_rank_that_is_there_is_told_so(three: Talks) -> None:
    place = MeetingPlace("127.0.0.1", three.port, 3, 1)
    genuine, three.others[1] = three.others[1], OtherNode(place, "again")
    refused = three.ask(1, "end-1", 1.0)
    heard = [one.result(LONG_S) for one in [three.ask_early(2), three.ask(0, "end-1", 1.0)]]
    while not refused.done():
        three.first.greet()
    problem = refused.result().problem
    genuine.close()

    assert [set(one.told) for one in heard] == [{0, 2}] * 2

    assert problem == "the first node knows another node rank 1: n1"


def test_a_node_that_was_started_anew_is_taken_where_the_one_before_has_gone(
    three: Talks,
) -> None:
    three.others[1].close()
    three.others[1] = OtherNode(MeetingPlace("127.0.0.1", three.port, 3, 1), "again")
    three.others[1].open(LONG_S, print)
    heard = hear_all(three)

    assert [len(one.told) for one in heard] == [3] * 3


def test_a_node_of_an_earlier_job_takes_no_place_in_the_next_one(three: Talks) -> None:
    # GIVEN nodes that have met, and a first node that was started anew
    hear_all(three)
    three.first.close()
    three.first = FirstNode(MeetingPlace("127.0.0.1", three.port, 3, 0), "n0")
    three.first.open(LONG_S, print)
    late = three.ask(1, "end-1")
    while not late.done():
        three.first.greet()
    left_over = three.others[1]
    three.others[2].close()
    for rank in (1, 2):
        place = MeetingPlace("127.0.0.1", three.port, 3, rank)
        three.others[rank] = OtherNode(place, f"n{rank}")
        three.others[rank].open(LONG_S, print)
    heard = hear_all(three)
    left_over.close()

    assert late.result().left == {0: Left()}
    assert [len(one.told) for one in heard] == [3] * 3


@pytest.mark.parametrize(
    "word", [{"rank": 2, "key": "k"}, {"rank": 2, "key": "k", "label": "end-7", "text": "x" * 999}]
)
def test_a_stranger_that_never_stops_talking_holds_up_nobody(word: object) -> None:
    talks = Talks(3)
    talks.first.open(LONG_S, print)
    talks.others[1].open(LONG_S, print)
    is_over = threading.Event()

    def talk() -> None:
        with suppress(OSError), call(talks, word) as stranger:
            while not is_over.is_set():
                stranger.sendall(json.dumps(word).encode() + b"\n")

    talker = threading.Thread(target=talk)
    talker.start()
    heard = [one.result(LONG_S) for one in [talks.ask_early(1), talks.ask(0, "end-1", 2.0)]]
    is_over.set()
    talks.close()
    talker.join(LONG_S)

    assert [set(one.told) for one in heard] == [{0, 1}] * 2


def test_labels_without_end_are_not_kept() -> None:
    talks = Talks(2)
    talks.first.open(LONG_S, print)
    words = ({"rank": 1, "key": "k", "label": f"{number}"} for number in range(5000))
    with call(talks, *words):
        for _ in range(100):
            talks.first.greet()
        kept = len(talks.first._words)
    talks.close()

    assert kept < 100
