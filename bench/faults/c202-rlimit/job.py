"""Training under a limit of memory, as shared machines set it with `ulimit -v`."""

import resource

from _train.training import start
from cache import Cache

GIB = 1 << 30


def limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * GIB, resource.RLIM_INFINITY))


def main() -> None:
    job = start(__file__)
    limit_memory()
    cache = Cache(job)
    keep = job.wrapped(cache.keep)
    for step, batch in job.batches(steps=80):
        keep(step, batch)
        loss = job.engine.step(batch)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
