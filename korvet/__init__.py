"""korvet: a broker that speaks the Kafka protocol and keeps its data in Redis Streams, or in memory.

`open_server` runs a broker inside another Trio program:

    async with korvet.open_server() as server:
        ...  # clients connect to server.bootstrap_servers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from korvet.server.assembly import open_server as open_server

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # The command line starts in a tenth of the time that importing a broker takes.
    if name == "open_server":
        from korvet.server.assembly import open_server  # noqa: PLC0415

        return open_server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
