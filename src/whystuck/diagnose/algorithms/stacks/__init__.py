"""Frames and stacks: whose code it is, and what it does."""
