"""Traces on demand: what Kineto is told, what it made of it, and the file in the end.

`config_text` and `states` are pure, `guards` decides what is safe to ask, `tracer` follows each
request, `finishing` makes the file that was wanted of the one that Kineto wrote.
"""
