"""Work in a thread of its own leaves no memory behind."""

from __future__ import annotations

import gc
import weakref

import pytest

from whystuck.launch.background import Background


class Node:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def background() -> Background:
    return Background(note=lambda text: None, say=lambda text: None, after=lambda: None)


def test_cycles_of_a_piece_of_work_are_freed_when_it_is_over(background: Background) -> None:
    made: list[weakref.ref[Node]] = []
    gc.disable()  # as between two collections
    try:
        for _ in range(2):
            background.start(lambda: made.append(weakref.ref(Node())))
            background.join(10)

            assert not background.is_busy
            assert made[-1]() is None
    finally:
        gc.enable()
        gc.unfreeze()


def test_what_the_first_work_has_loaded_is_not_looked_at_again(background: Background) -> None:
    before = gc.get_freeze_count()
    try:
        background.start(lambda: None)
        background.join(10)
        first = gc.get_freeze_count()
        background.start(lambda: None)
        background.join(10)

        assert first > before
        assert gc.get_freeze_count() <= first
    finally:
        gc.unfreeze()
