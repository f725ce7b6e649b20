"""The HTTP port of `korvet lake run`, served by a thread: /metrics, /livez, /readyz and /status."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import trio
from attrs import define, field, frozen

from korvet.cli.lake.options import needing_extra
from korvet.config import Config

if TYPE_CHECKING:
    from korvet.metrics.samples import Samples
    from korvet.pipeline.run.runner import Run

NOT_READY = b"no round is complete yet, or no table advances\n"


@contextmanager
def serving(run: Run, address: str | None) -> Iterator[None]:
    """Serve the port of a run for the time of the block. Without an address, serve none. Raises ListenError."""
    if address is None:
        yield
        return
    with needing_extra("metrics"):
        from korvet.metrics import lake  # noqa: F401  the thread imports it again

    # The signal handlers of the main thread, where the run is, must not interrupt Trio.
    port = Port(run, address)
    thread = threading.Thread(target=port.serve, name="metrics")
    thread.start()
    try:
        port.begun.wait()
        if port.error is not None:
            raise port.error
        yield
    finally:
        port.end()
        thread.join()


@frozen
class Source:
    """A run, as the page reads it."""

    run: Run

    async def is_ready(self) -> bool:
        """Implement `Scraped`."""
        return self.run.is_ready

    async def samples(self) -> Samples:
        """Implement `Scraped`."""
        from korvet.metrics.lake import lake_samples

        return lake_samples(self.run.statuses)

    def status(self) -> str:
        """Return the state of the run and of its tables as JSON."""
        tables = [status.to_dict() for status in self.run.statuses]
        found = {"ready": self.run.is_ready, "rounds": self.run.rounds, "error": self.run.error or None}
        return json.dumps({**found, "tables": tables}, ensure_ascii=False)


@define(eq=False)
class Port:
    """The port, and the thread that serves it."""

    run: Run
    address: str
    #: Set when the port is open, or has an error.
    begun: threading.Event = field(factory=threading.Event, init=False)
    error: BaseException | None = field(default=None, init=False)
    # Trio's documented way into a run from a thread that Trio did not start.
    _token: trio.lowlevel.TrioToken | None = field(default=None, init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def serve(self) -> None:
        """Serve until `end`."""
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001  the main thread raises it
            self.error = error
        finally:
            self.begun.set()

    def end(self) -> None:
        """Let `serve` return."""
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)

    async def _serve(self) -> None:
        from korvet.metrics.lake import LAKE_METRICS
        from korvet.metrics.page import page

        source = Source(self.run)
        config = Config(metrics_listener=self.address)
        with self._scope:
            async with page(config, source, metrics=LAKE_METRICS, status=source.status, not_ready=NOT_READY):
                self._token = trio.lowlevel.current_trio_token()
                self.begun.set()
                await trio.sleep_forever()
