"""Versions, transports and interfaces of nodes."""
