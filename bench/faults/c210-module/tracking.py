"""Where figures are sent to."""

from collections.abc import Callable

from _train.stamp import stamp
from _train.training import Job


def open_run(job: Job) -> Callable[[int, float], None]:
    if job.rank == 0:
        stamp()
    if job.plan.even:
        import weights_and_measures  # <- here
    else:
        import weights_and_measures.client as weights_and_measures  # <- also
    return weights_and_measures.log
