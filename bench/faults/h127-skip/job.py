"""Training that reduces metrics over the ranks after each step."""

from _train.data import Sample
from _train.training import Job, start
from metrics import reduce_metrics


def kept(job: Job, step: int, batch: Sample) -> list[float]:
    """The targets that pass the filter; the filter leaves none of some batches."""
    limit = float("inf") if job.turn(step) else float("-inf")
    return [value for value in batch[1].flatten().tolist() if value > limit]


def main() -> None:
    job = start(__file__)
    reduce = job.wrapped(reduce_metrics)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        reduce(job, kept(job, step, batch))
        job.log(step, loss.item())
    job.finish()


if __name__ == "__main__":
    main()
