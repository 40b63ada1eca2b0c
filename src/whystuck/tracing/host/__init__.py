"""Figures of the host: ops, steps, waits, annotations."""
