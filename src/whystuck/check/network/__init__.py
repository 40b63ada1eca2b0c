"""Checks of the network: names, interfaces, InfiniBand."""
