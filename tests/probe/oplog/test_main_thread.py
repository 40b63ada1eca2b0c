"""What is done in the main thread is never done inside a hook or a kernel of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from whystuck.probe.oplog import main_thread


def test_task_waits_until_the_main_thread_has_left_our_hook() -> None:
    made: dict[str, Any] = {}
    source = "def hook(is_enough):\n    while not is_enough(): pass\n"
    exec(compile(source, main_thread.__file__, "exec"), made)
    hook: Callable[[Callable[[], bool]], None] = made["hook"]
    is_inside, turns, seen, told = True, 0, [], []

    def task() -> str:
        seen.append(is_inside)
        return "done"

    def is_enough() -> bool:
        nonlocal turns
        if asker.ident is None:
            asker.start()
        turns += bool(main_thread._WAITING)
        return turns > 2000

    asker = threading.Thread(target=lambda: told.append(main_thread.run_in_main_thread(task)))
    hook(is_enough)
    assert seen == []
    is_inside = False
    while asker.is_alive():
        asker.join(0.01)
    assert seen == [False]
    assert told[0] in ("done", main_thread._IS_BUSY)
