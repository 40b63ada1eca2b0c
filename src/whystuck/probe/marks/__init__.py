"""Marks: when each phase of a step begins and ends, in a mapped file; `docs/marks.md`."""
