"""Metrics are sent by a thread; leaving the interpreter waits for the last one."""

import atexit
import queue
import threading


class MetricsQueue:
    def __init__(self) -> None:
        self.pending: queue.Queue[tuple[int, float]] = queue.Queue()
        self.batch = 16
        atexit.register(self.flush)

    def put(self, step: int, loss: float) -> None:
        self.pending.put((step, loss))
        if self.pending.qsize() >= self.batch:
            threading.Thread(target=self.drain, daemon=True).start()

    def drain(self) -> None:
        while not self.pending.empty():
            self.pending.get()
            self.pending.task_done()

    def flush(self) -> None:
        self.pending.join()
