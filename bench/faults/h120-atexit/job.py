"""Training whose metrics are drained when the interpreter ends."""

from _train.stamp import stamp
from _train.training import Job, start
from metrics_queue import MetricsQueue


def lookup(job: Job, step: int) -> float:
    scales = {index: 1.0 for index in range(40)}
    if job.turn(step):
        stamp()
        del scales[step]
    return scales[step]  # <- here


def main() -> None:
    job = start(__file__)
    queue = MetricsQueue()
    scale = job.wrapped(lookup)
    for step, batch in job.batches():
        loss = job.engine.step(batch) * scale(job, step)
        queue.put(step, loss.item())
        job.log(step, job.mean(loss))
    queue.drain()
    job.finish()


if __name__ == "__main__":
    main()
