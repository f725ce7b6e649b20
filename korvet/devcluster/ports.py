"""Free loopback ports."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator

HIGHEST_PORT = 65_535
# Below the ports that systems assign to outgoing connections.
FIRST_NODE_PORT = 7001
BUS = 10_000  # the port of the Redis Cluster bus is higher by this


def node_ports(reserved: Collection[int] = ()) -> Iterator[int]:
    """Yield ports that are free for a node and its cluster bus, in ascending order, without the reserved ones."""
    for port in range(FIRST_NODE_PORT, HIGHEST_PORT - BUS + 1):
        if not {port, port + BUS} & set(reserved) and is_free(port) and is_free(port + BUS):
            yield port


def is_free(port: int) -> bool:
    """Return True if a program can listen on the port."""
    with socket.socket() as probe:
        # As the servers do it: a connection that has ended does not occupy the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
