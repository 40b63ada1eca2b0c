"""The healthy training that every case starts from."""

from _train.job import Job, start
from _train.stamp import stamp

__all__ = ["Job", "stamp", "start"]
