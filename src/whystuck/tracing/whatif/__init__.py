"""What a job would gain if a part of it were faster: the graphs of all ranks, replayed."""
