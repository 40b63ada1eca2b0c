"""Handlers of signals: Python's, and those that need no interpreter."""
