"""Ops of groups: alignment, divergence, call patterns, waits."""
