"""Stacks in logs: of processes that still ran, of errors, of fatal signals, and whose they are."""
