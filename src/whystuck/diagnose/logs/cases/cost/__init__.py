"""What steps lose to something that a profiler lists."""
