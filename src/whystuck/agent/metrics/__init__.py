"""Figures of a node and its ranks: sources read, the collector bounds, sinks pass on."""
