"""Losses are queued by the training loop and written by a thread."""

import threading
import time

from _train.stamp import stamp
from _train.training import Job


class StatisticsLog:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.queue_lock = threading.Lock()
        self.file_lock = threading.Lock()
        self.queue: list[tuple[int, float]] = []
        self.lines: list[str] = []

    def add(self, step: int, loss: float) -> None:
        with self.queue_lock:
            self.queue.append((step, loss))
            if self.job.turn(step):
                threading.Thread(target=self.flush, daemon=True).start()
                time.sleep(0.2)
                stamp()
                with self.file_lock:  # <- here
                    self.lines.append(f"{step} {loss}")

    def flush(self) -> None:
        with self.file_lock:
            time.sleep(0.05)
            with self.queue_lock:  # <- here
                pending, self.queue = self.queue, []
            self.lines += [f"{step} {loss}" for step, loss in pending]
