"""What logs say: known lines, tracebacks, exits, and their summary in a report."""
