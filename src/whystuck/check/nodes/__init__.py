"""Checks of several nodes together: who came, versions, clocks, speed, pairs, all-reduce."""
