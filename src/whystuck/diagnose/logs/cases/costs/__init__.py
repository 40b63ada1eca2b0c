"""Cases of what steps cost, by the tables of profilers."""
