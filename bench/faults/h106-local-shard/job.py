"""Training that exports a sharded table now and then."""

from _train.training import start
from table import Table


def main() -> None:
    job = start(__file__)
    table = Table(job)
    export = job.wrapped(table.export)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        export(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
