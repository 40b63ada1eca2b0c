"""Pickled dumps read without an object for each value.

A dump holds thousands of entries with the same keys in the same order. Unpickling makes an
object for each value; here numpy reads the bytes of many entries at a time. Dumps that are
written in another way go through `parse.dumps.safe_pickle`. `make bench-fr` measures both.
"""
