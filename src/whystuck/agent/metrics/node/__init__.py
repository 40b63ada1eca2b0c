"""Figures of a node without accelerators."""
