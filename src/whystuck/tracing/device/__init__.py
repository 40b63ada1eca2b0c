"""Figures of the work of devices."""
