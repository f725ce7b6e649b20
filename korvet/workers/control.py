"""The messages between the parent and its workers, over a socket pair for each worker.

    parent                      worker
    Setup           ──────▶
                    ◀──────     Ready, or Refused
    Reload          ──────▶                          any number of times
    Measure         ──────▶
                    ◀──────     Measured             the metrics of the worker
    Drain           ──────▶                          a worker whose parent has ended drains as well
                    ◀──────     Drained              no connection is left; the worker still answers RPC requests
    End             ──────▶                          no worker will send an RPC request any more

Messages are pickles in frames like those of the protocol. Pickle is safe here: both ends are the same program, and no
other process has the sockets.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import trio
from attrs import define, field, frozen

from korvet.cluster.registered import BrokerProcess
from korvet.config import Config
from korvet.metrics.samples import Samples
from korvet.protocol.frames import LARGEST_FRAME, FrameReader, framed

RECEIVE_BYTES = 64 * 1024


@frozen
class Setup:
    """A worker's configuration. `index` is from 0 to `config.processes` - 1; `folder` has the RPC sockets."""

    config: Config
    index: int
    folder: Path
    incarnation: str  # of the broker

    @property
    def process(self) -> BrokerProcess:
        """The worker as a process of its broker."""
        return BrokerProcess(self.incarnation, registers=self.index == 0)

    def path_of(self, index: int) -> Path:
        """Return the path of the socket on which a worker answers RPC requests."""
        return self.folder / f"{index}.sock"


@frozen
class Ready:
    """The worker serves. `lines` are its start messages, `address` is the advertised one of its first listener."""

    lines: Sequence[str]
    address: str


@frozen
class Refused:
    """The worker cannot serve, and the operator has to resolve the cause."""

    error: BaseException


@frozen
class Drain:
    """Close the listeners and answer the requests received so far; with `at_once`, close connections immediately."""

    at_once: bool = False


@frozen
class Reload:
    """Read certificates, passwords and keys of tokens again."""


@frozen
class Measure:
    """Send the metrics; `reads_store` is True for the one worker that reads those of the store."""

    number: int
    reads_store: bool


@frozen
class Measured:
    """The metrics of a worker, in response to the request with that number."""

    number: int
    samples: Samples


@frozen
class Drained:
    """The worker has drained: it has no connections left."""


@frozen
class End:
    """The parent allows the worker to end, because all other workers have drained."""


Message = Setup | Ready | Refused | Reload | Measure | Measured | Drain | Drained | End


@define(eq=False)
class Control:
    """One end of a socket pair for messages."""

    stream: trio.SocketStream
    _sending: trio.Lock = field(factory=trio.Lock)
    _frames: FrameReader = field(factory=lambda: FrameReader(LARGEST_FRAME))

    @classmethod
    def on(cls, sock: socket.socket) -> Control:
        """Return the end of the pair that uses this socket."""
        return cls(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))

    async def send(self, message: Message) -> None:
        """Send a message. If the other end is closed, drop it: `receive` reports the closed end."""
        data = b"".join(framed([pickle.dumps(message)]))
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._sending:
                await self.stream.send_all(data)

    async def receive(self) -> Message | None:
        """Return the next message, or None if the other end is closed."""
        while (frame := self._frames.next_frame()) is None:
            try:
                chunk = await self.stream.receive_some(RECEIVE_BYTES)
            except trio.BrokenResourceError:
                return None
            if not chunk:
                return None
            self._frames.receive_data(chunk)
        message: Message = pickle.loads(frame)  # noqa: S301  see the module
        return message
