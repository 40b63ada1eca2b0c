"""Sends and receives: which belong together."""
