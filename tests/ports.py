"""Ports for servers that cannot be asked to take any free one."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack

# Below 32768, where Linux starts to hand out ports to clients: between the moment a port is found
# and the moment the server binds it, no connection of another test is given it.
_FIRST, _LAST = 12000, 32000


def find_port(count: int = 1) -> int:
    """Return a port that is free on all addresses; each process looks in another order.

    With ``count``, so are those behind it, as many in all.
    """
    order = random.Random(os.urandom(16))
    for _ in range(1000):
        port = order.randint(_FIRST, _LAST)
        try:
            with ExitStack() as servers:
                for one in range(port, port + count):
                    servers.enter_context(socket.create_server(("", one)))
                return port
        except OSError:
            continue
    raise RuntimeError(f"no port between {_FIRST} and {_LAST} is free")
