"""The agent's remote calls: the protocol of dynolog's ``dyno``, and calls of our own over it.

One connection carries one request and one reply, each a length of four bytes and JSON.
"""
