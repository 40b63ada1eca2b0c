"""Checks of what computes: versions, devices, matrix products, collectives on this node."""
