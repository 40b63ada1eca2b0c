"""Training in which each step takes each rank up to 30 ms longer."""

import time

from _train.training import start


def main() -> None:
    job = start(__file__)
    for step, batch in job.batches(steps=200):
        time.sleep(0.03 * job.random.random())
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
