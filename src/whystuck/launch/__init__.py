"""Around the job: the supervisor, per-rank logs, stall detection and incidents."""
