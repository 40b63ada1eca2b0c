"""Exceptions, exits and configurations: what failed first."""
