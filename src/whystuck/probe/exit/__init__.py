"""The end of a rank: exceptions, signals, exit calls."""
