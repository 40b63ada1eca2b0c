"""Figures of a node and its ranks: sources read them, sinks pass them on."""
