"""Checks of accelerators, by what their driver tells."""
