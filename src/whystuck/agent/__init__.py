"""The agent of a node: traces on demand of jobs that run unmodified, and metrics.

One asyncio process a node, or one beside a job under ``whystuck run``. `roles` says what its parts
are to each other, `daemon` puts them together.
"""
