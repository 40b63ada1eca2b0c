"""One line of a log: its text, and what stands before it."""
