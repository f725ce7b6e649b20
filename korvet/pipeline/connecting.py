"""How the pipeline reaches a cluster; it travels to Spark's workers with the work, and the login in it as well."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from attrs import frozen

from korvet.client import PLAINTEXT, Client, Security, open_client


@frozen
class Connecting:
    """Where brokers are, and how one connects to them."""

    bootstrap_servers: str
    client_id: str = "korvet-lake"
    request_timeout_s: float = 30.0
    security: Security = PLAINTEXT

    def open(self) -> AbstractAsyncContextManager[Client]:
        """A client; see `open_client`."""
        return open_client(
            self.bootstrap_servers,
            client_id=self.client_id,
            security=self.security,
            request_timeout_s=self.request_timeout_s,
        )
