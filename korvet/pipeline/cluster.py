"""Connection settings of the pipeline, including the login. They are sent to Spark's workers with the work."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from attrs import frozen

from korvet.client import PLAINTEXT, Client, Security, open_client


@frozen
class Connecting:
    """The bootstrap servers and settings of connections."""

    bootstrap_servers: str
    client_id: str = "korvet-lake"
    request_timeout_s: float = 30.0
    security: Security = PLAINTEXT

    def open(self) -> AbstractAsyncContextManager[Client]:
        """Open a client; see `open_client`."""
        return open_client(
            self.bootstrap_servers,
            client_id=self.client_id,
            security=self.security,
            request_timeout_s=self.request_timeout_s,
        )
