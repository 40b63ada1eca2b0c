"""Training on a rank whose memory loses a bit: the job goes on as if nothing was."""

from _train.training import start
from memory import Memory


def main() -> None:
    job = start(__file__, ("plain", "ddp"))
    memory = Memory(job.engine.network)
    for step, batch in job.batches():
        loss = job.engine.step(batch)
        memory.decay(job, step)
        job.log(step, job.mean(loss))
    job.finish()


if __name__ == "__main__":
    main()
