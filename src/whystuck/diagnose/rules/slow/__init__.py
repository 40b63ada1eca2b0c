"""Ranks and steps that are slow, by op logs and dumps."""
