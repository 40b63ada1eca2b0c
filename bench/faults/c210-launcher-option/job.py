"""Training that is started with a misspelt option of the launcher."""

from _train.training import start


def main() -> None:
    job = start(__file__)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
