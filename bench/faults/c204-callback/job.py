"""Training by a trainer with an early end."""

from _train.training import start
from patience import Patience
from trainer import Trainer


def main() -> None:
    job = start(__file__)
    trainer = Trainer(job, [Patience(job)])
    trainer.fit()
    job.finish()


if __name__ == "__main__":
    main()
