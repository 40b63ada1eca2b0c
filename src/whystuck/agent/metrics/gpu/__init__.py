"""Figures of accelerators."""
