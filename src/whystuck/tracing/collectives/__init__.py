"""Figures of collectives: matching across ranks, clocks, stragglers."""
