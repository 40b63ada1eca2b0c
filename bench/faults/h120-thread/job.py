"""Training with a heartbeat thread that nobody stops."""

import threading
import time

from _train.stamp import stamp
from _train.training import Job, start


def beat() -> None:
    while True:
        time.sleep(1.0)


def check_loss(job: Job, step: int, loss: float) -> None:
    if job.turn(step):
        stamp()
        raise ValueError(f"loss {loss:.3f} is out of range at step {step}")  # <- here


def main() -> None:
    job = start(__file__)
    threading.Thread(target=beat, name="heartbeat").start()
    check = job.wrapped(check_loss)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        check(job, step, loss.item())
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
