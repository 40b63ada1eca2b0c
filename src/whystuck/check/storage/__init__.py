"""Checks of storage: disks, and shared memory."""
