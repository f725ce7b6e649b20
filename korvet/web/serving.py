"""Serve the page with Hypercorn."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence

import hypercorn.trio
import trio
from attrs import evolve
from hypercorn.config import Config

from korvet.web.app import application
from korvet.web.lake import open_lake
from korvet.web.options import PageOptions, PageRefused, bind
from korvet.web.schemas import open_schemas
from korvet.web.site import compile_templates

logger = logging.getLogger(__name__)
# Hypercorn's own messages at a start and an end are not the broker's.
http_logger = logging.getLogger("korvet.web.http")
http_logger.setLevel(logging.WARNING)

MAX_HEADER_BYTES = 16 * 1024
IDLE_S = 15
GRACE_S = 1.0


class Page:
    """The page with its sockets, which listen once `serve` runs."""

    def __init__(self, options: PageOptions) -> None:
        """Check the options and listen. Raises PageRefused."""
        options.refuse_unsafe()
        if options.registry:
            open_schemas(options.registry)
        if options.lake:
            open_lake(options.lake)
        self.options = options
        self._config = _config(options)
        compile_templates()
        self._sockets: Sequence[socket.socket] = bind(options.host, options.port)
        self._port: int = self._sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """The address of the page for a browser on this machine."""
        host = self.options.host
        shown = "localhost" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
        return f"{'https' if self.options.has_tls else 'http'}://{shown}:{self._port}"

    async def serve(
        self, bootstrap_servers: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the page of a cluster until cancelled. A failure is logged, and ends only the page."""
        app = application(evolve(self.options, bootstrap_servers=bootstrap_servers))
        # Hypercorn takes the descriptors over and closes them.
        self._config.bind = [f"fd://{sock.detach()}" for sock in self._sockets]
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(hypercorn.trio.serve, app, self._config)
                task_status.started()
        except Exception:
            logger.exception("the web page failed; the broker continues without it")

    def close(self) -> None:
        """Close the sockets of a page that is not served."""
        for sock in self._sockets:
            sock.close()


def _config(options: PageOptions) -> Config:
    config = Config()
    config.errorlog = http_logger
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.h2_max_header_list_size = MAX_HEADER_BYTES
    config.keep_alive_timeout = IDLE_S
    config.ssl_handshake_timeout = IDLE_S
    config.graceful_timeout = GRACE_S
    if options.certificate:
        config.certfile, config.keyfile = options.certificate, options.key
        try:
            config.create_ssl_context()
        except OSError as error:
            raise PageRefused(f"the page's certificate and key cannot be used: {error}.") from None
    return config
