"""Checks of a node before a job: is it fit to train?

Each check is a class (`check.py`) that runs in a process of its own with a deadline (`apart.py`),
and compares what it measures with a file of thresholds (`policy.toml`). What is wrong becomes a
finding by the rule of its code, as everything else does.
"""
