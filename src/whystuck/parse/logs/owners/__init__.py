"""Whose the lines of logs are: ranks, hosts, processes and groups."""
