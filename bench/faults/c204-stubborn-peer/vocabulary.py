"""Words and their numbers."""

from _train.stamp import stamp
from _train.training import Job

WORDS = {f"word-{number}": number for number in range(100)}


def look_up(job: Job, step: int) -> int:
    word = f"word-{step}"
    if job.turn(step):
        stamp()
        word = word.upper()
    return WORDS[word]  # <- here
