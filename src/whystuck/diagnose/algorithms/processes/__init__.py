"""The state of processes: activity, locks, storage, links."""
