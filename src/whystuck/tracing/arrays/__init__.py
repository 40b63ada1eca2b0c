"""Helpers for arrays: intervals, segments, groups, nesting."""
