"""Programs that the Python of the job runs: nothing of ours is imported there."""
