"""Kineto traces to columns, piece by piece."""
