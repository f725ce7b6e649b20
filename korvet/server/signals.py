"""End a broker on SIGTERM or SIGINT: undo a start that is not complete, drain a broker that serves.

A terminal that closes sends SIGHUP, which ends a broker that was started with a controlling terminal. A service manager
sends SIGHUP to a broker without one, which reloads. A broker started by nohup ignores SIGHUP, as nohup intends.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from korvet.concurrency.background import background_nursery

logger = logging.getLogger(__name__)


def handled_signals() -> list[signal.Signals]:
    """Return the signals that end or reload a broker: SIGHUP only if the process was not started to ignore it."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if is_ignored else [signal.SIGHUP])]


def has_terminal() -> bool:
    """Return True if the process has a controlling terminal."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # also if there is no /dev, as in some containers
        return False
    os.close(descriptor)
    return True


@define(eq=False)
class Ending:
    """Cancel the block on a signal; once `tell` is set, call it instead, for each signal.

    Without a controlling terminal, SIGHUP calls `reload` instead, once it is set.
    """

    tell: Callable[[], Awaitable[None]] | None = None
    reload: Callable[[], Awaitable[None]] | None = None
    number: signal.Signals | None = None  # the signal that cancelled the block
    scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def obey(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Wait for signals until cancelled.

        Only the first SIGHUP counts: the kernel and the shell both send one when a terminal closes, and a second
        signal would end the broker without draining.
        """
        is_ending = False
        # Now, because a process whose terminal has closed has no controlling terminal any more.
        hangup_ends = has_terminal()
        with trio.open_signal_receiver(*handled_signals()) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP and (is_ending or not hangup_ends):
                    if self.reload is not None and not is_ending:
                        logger.info("SIGHUP: reloading")
                        await self.reload()
                    continue
                is_ending = True
                name = signal.Signals(number).name
                if self.tell is None:
                    logger.info("%(signal)s: ending before it serves", {"signal": name})
                    self.number = signal.Signals(number)
                    self.scope.cancel()
                else:
                    logger.info(
                        "%(signal)s: ending; SIGTERM or SIGINT now ends the broker immediately",
                        {"signal": name},
                    )
                    await self.tell()


@asynccontextmanager
async def ended_by_signals() -> AsyncIterator[Ending]:
    """Let signals end the block, which sets `tell` once it serves. Use it in the main thread only.

    Raises SystemExit, with the status of a process ended by a signal, if a signal arrived before `tell` was set.
    """
    ending = Ending()
    async with background_nursery() as nursery:
        await nursery.start(ending.obey)
        with ending.scope:
            yield ending
    if ending.number is not None:
        raise SystemExit(128 + ending.number)
