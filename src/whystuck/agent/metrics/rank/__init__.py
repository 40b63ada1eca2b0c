"""Figures of ranks, and which process is which rank."""
