"""SIGTERM and SIGINT, which end a broker: what they find half started is undone, what serves is told to end."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from korvet.storage.background import background_nursery

logger = logging.getLogger(__name__)


@define(eq=False)
class Ending:
    """What a signal does: the block is given up, or once there is somebody to tell, they are told, each time."""

    tell: Callable[[], Awaitable[None]] | None = None
    number: signal.Signals | None = None  # of the signal that the block was given up for
    scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def obey(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Do so until cancelled."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                name = signal.Signals(number).name
                if self.tell is None:
                    logger.info("%s: ending before it serves", name)
                    self.number = signal.Signals(number)
                    self.scope.cancel()
                else:
                    logger.info("%s: ending; once more ends at once", name)
                    await self.tell()


@asynccontextmanager
async def ended_by_signals() -> AsyncIterator[Ending]:
    """Have signals end this block, which says whom to tell once it serves. In the main thread only.

    Raises SystemExit where it never served, with the status of a process that a signal has ended.
    """
    ending = Ending()
    async with background_nursery() as nursery:
        await nursery.start(ending.obey)
        with ending.scope:
            yield ending
    if ending.number is not None:
        raise SystemExit(128 + ending.number)
