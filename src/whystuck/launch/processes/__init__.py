"""Processes and signals of a job: how they end, and who ended them."""
