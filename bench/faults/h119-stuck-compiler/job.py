"""Training in which a helper is compiled when it is first used."""

from _train.training import start
from norms import measure_norm, prepare


def main() -> None:
    job = start(__file__)
    prepare(job)
    measure = job.wrapped(measure_norm)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        measure(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
