"""Kineto traces of many ranks to one summary: finds files, maps them in processes, reduces."""
