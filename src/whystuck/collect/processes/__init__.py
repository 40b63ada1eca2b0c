"""What the kernel, py-spy and the profiler say of processes."""
