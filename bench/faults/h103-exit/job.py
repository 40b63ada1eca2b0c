"""Training over shards that are not all of one length."""

from _train.data import BATCH, Samples
from _train.training import start


def main() -> None:
    job = start(__file__)
    steps = job.plan.step if job.chosen() else 60
    shard = Samples(steps * BATCH)
    for step, batch in job.batches(shard):  # <- here
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))  # <- here
    job.close()  # <- here
    print(f"rank {job.rank}: trained for {steps} steps", flush=True)  # <- here


if __name__ == "__main__":
    main()  # <- here
