"""Training with statistics that a second thread flushes."""

from _train.training import start
from statistics_log import StatisticsLog


def main() -> None:
    job = start(__file__)
    log = StatisticsLog(job)
    add = job.wrapped(log.add)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        add(step, loss.item())
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
