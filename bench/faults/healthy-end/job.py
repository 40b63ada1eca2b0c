"""A short job whose ranks end a few seconds apart."""

import time

from _train.training import start


def main() -> None:
    job = start(__file__)
    for step, batch in job.batches(steps=20):
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()
    time.sleep(4 * job.random.random())


if __name__ == "__main__":
    main()
