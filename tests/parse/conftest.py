"""Properties are checked with the same examples in every run, however slow the machine is."""

from hypothesis import settings

settings.register_profile("whystuck", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("whystuck")
