"""Wait for the bytes of all clients in one task, which also serves the requests that need no wait.

With `trio.lowlevel.wait_readable`, each request would cost a registration with epoll, and a switch to its connection's
task: a quarter of the interpreter's instructions for a small Produce in memory. So the sockets stay registered with an
epoll instance, whose events one task handles. The task of a connection is woken only if its client's request has to
wait for something.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from attrs import define, field

# Limit of the connections that are served before other tasks run.
EVENTS_AT_ONCE = 32


@define(eq=False)
class Waiter:
    """A task that waits until its socket is readable and `serve` returns False."""

    task: trio.lowlevel.Task
    serve: Callable[[], bool]
    error: Exception | None = None  # that `serve` has raised


@define(eq=False)
class Readiness:
    """The sockets that tasks wait for, by file descriptor."""

    _epoll: select.epoll
    _waiters: dict[int, Waiter] = field(factory=dict)
    _registered: set[int] = field(factory=set)

    async def serve(self, number: int, serve: Callable[[], bool]) -> None:
        """Call `serve` whenever the socket is readable, until it returns False. Raises what it raises.

        `serve` is called by the task of `run`, and must not wait.
        """
        if number not in self._registered:
            self._epoll.register(number, select.EPOLLIN)
            self._registered.add(number)
        waiter = self._waiters[number] = Waiter(trio.lowlevel.current_task(), serve)

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiters[number]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if waiter.error is not None:
            try:
                raise waiter.error
            finally:
                waiter.error = None  # its traceback refers to this function, and so to the waiter

    def forget(self, number: int) -> None:
        """Unregister a socket, before it is closed."""
        if number in self._registered:
            self._registered.discard(number)
            self._epoll.unregister(number)

    async def run(self) -> None:
        """Call the functions of readable sockets, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for number, _ in self._epoll.poll(0, EVENTS_AT_ONCE):
                waiter = self._waiters.get(number)
                if waiter is None:
                    self.forget(number)  # the connection is busy, and waits for no request
                else:
                    self._serve(number, waiter)

    def _serve(self, number: int, waiter: Waiter) -> None:
        try:
            if waiter.serve():
                return
        except Exception as error:  # noqa: BLE001  raised in the task that waits
            waiter.error = error
        if self._waiters.get(number) is waiter:  # it was not cancelled by its own request
            del self._waiters[number]
            trio.lowlevel.reschedule(waiter.task)


@contextmanager
def open_readiness() -> Iterator[Readiness | None]:
    """Yield a Readiness, or None on a system without epoll (only Linux has it)."""
    if not hasattr(select, "epoll"):
        yield None
        return
    with select.epoll() as epoll:
        yield Readiness(epoll)
