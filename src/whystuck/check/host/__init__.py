"""Checks of the host: limits, memory, clock, kernel log."""
