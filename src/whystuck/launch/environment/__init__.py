"""Environment variables that `whystuck run` sets and checks."""
