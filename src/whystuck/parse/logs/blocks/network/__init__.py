"""Readers of what tools print of ports, links, addresses, and of tests between hosts."""
