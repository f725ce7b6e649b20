"""What the parent and its workers say to each other, over a pair of sockets for each worker.

    parent                      worker
    Setup           ──────▶
                    ◀──────     Ready, or Refused
    Drain           ──────▶                          also when the parent has gone
                    ◀──────     Drained              no connection is left; questions of others are still answered
    End             ──────▶                          nobody will ask any more

A frame, as those of the protocol are, is a pickle: both are the same program, and nobody else has the sockets.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import trio
from attrs import define, field, frozen

from korvet.config import Config
from korvet.protocol.frames import LARGEST_FRAME, FrameReader, framed

RECEIVE_BYTES = 64 * 1024


@frozen
class Setup:
    """What a worker is to be: one of `config.processes`, counted from 0, with its socket for the others in `folder`."""

    config: Config
    index: int
    folder: Path

    def path_of(self, index: int) -> Path:
        """Where a worker answers the others."""
        return self.folder / f"{index}.sock"


@frozen
class Ready:
    """The worker serves; what there is to say about it, and the address its first listener's clients are told."""

    lines: Sequence[str]
    address: str


@frozen
class Refused:
    """The worker cannot serve, for a reason that the operator has to do something about."""

    error: BaseException


@frozen
class Drain:
    """Accept nothing more, and answer what was accepted; `at_once`: do not even do that."""

    at_once: bool = False


@frozen
class Drained:
    """That is done."""


@frozen
class End:
    """The others are done, too."""


Message = Setup | Ready | Refused | Drain | Drained | End


@define(eq=False)
class Control:
    """One end of it."""

    stream: trio.SocketStream
    _sending: trio.Lock = field(factory=trio.Lock)
    _frames: FrameReader = field(factory=lambda: FrameReader(LARGEST_FRAME))

    @classmethod
    def on(cls, sock: socket.socket) -> Control:
        """The end that has this socket."""
        return cls(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))

    async def send(self, message: Message) -> None:
        """Say something; to nobody, if the other end has gone, which `receive` tells."""
        data = b"".join(framed([pickle.dumps(message)]))
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._sending:
                await self.stream.send_all(data)

    async def receive(self) -> Message | None:
        """What the other end says next; None once it has gone."""
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
