"""A pipeline of four stages with forward and backward passes."""

from _train.training import start
from stages import Stage


def main() -> None:
    job = start(__file__, shapes=("plain",))
    stage = Stage(job)
    for step in range(60):
        stage.run(step)
        job.log(step, 0.0)
    job.finish()


if __name__ == "__main__":
    main()
