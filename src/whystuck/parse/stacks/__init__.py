"""Stacks of Python threads and of kernels, and executed lines."""
