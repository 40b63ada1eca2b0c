"""Kineto traces: events, tables made of them, and their summary in a report."""
