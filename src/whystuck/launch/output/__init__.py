"""What the job prints: from pipes and terminals to the logs of ranks."""
