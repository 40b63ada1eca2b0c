"""When a job counts as stuck, and what is done then."""
