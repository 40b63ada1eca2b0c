"""What several lines of a log tell as one thing: tracebacks, stacks, answers of RAS."""
