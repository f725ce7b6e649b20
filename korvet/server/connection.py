"""One client's connection: read requests and send responses, in order.

The task that reads a request handles it, sends its response, and then reads the next request. Requests are not queued:
the broker does not read from a client that sends faster than it is served. There is one exception. If a Produce has
submitted its appends (`RequestContext.submitted`) and waits for the store, and the client has sent more, another task
continues to read. So the broker decodes the next batch while the store appends the previous one. A task that has sent
its response then rests until another task transfers reading to it. The tasks send their responses in the order of the
requests. A request other than Produce is not handled until all earlier requests are answered. If the store never waits,
a connection has only one task.

Waiting for a request can be cancelled. From the first wait of its handler, a request is shielded until its response is
sent, or until the deadline that a drain sets.

The connection uses its socket directly, without `trio.SocketStream`, which needs two rounds of the scheduler where one
is enough, and can neither receive into a buffer nor send a list of buffers.
"""

from __future__ import annotations

import logging
import select
import socket
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from time import monotonic
from typing import Any, Protocol, TypeVar

import trio
from attrs import define, field, frozen

from korvet.broker.broker import Broker, Disconnect, RequestContext
from korvet.broker.limits import ByteBudget, Share
from korvet.protocol.buffers import Buffer
from korvet.protocol.connection import NEED_DATA, PRODUCE, Api, Connection, Request
from korvet.protocol.errors import ProtocolError
from korvet.protocol.frames import LARGE_FRAME
from korvet.server.busy_poll import Vigil
from korvet.server.log_limit import LogLimit

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Limits of in-flight produces per connection. Kafka's Java client has at most five requests in flight. librdkafka has
# no such limit and may send one request per batch of a partition, so more small produces may be in the store together.
PRODUCES_AT_ONCE = 5
SMALL_PRODUCES_AT_ONCE = 50
SMALL_PRODUCES_BYTES = 1 << 20
# Total number of in-flight produces from which each connection is limited to PRODUCES_AT_ONCE. Thousands of concurrent
# produces fragment the interpreter's memory, so that it is not returned to the system.
ALL_PRODUCES_AT_ONCE = 600
# Limit of idle tasks per connection that wait to continue reading. Starting a task costs as much as a small request.
RESTING_AT_MOST = 2
RECEIVE_BYTES = 64 * 1024
# The store needs so long for a Produce of this size that the next one arrives in the meantime.
LARGE_REQUEST_BYTES = 64 * 1024
# The system's limit of buffers in one sendmsg (IOV_MAX).
BUFFERS_AT_ONCE = 1024
# Limit of bytes copied to or from a socket in one call, which takes 0.25 ms. Socket buffers may hold ten times as much.
BYTES_AT_ONCE = 512 * 1024
# Time slice of a connection whose requests are already in memory, after which other connections run.
SLICE_S = 0.0005
# The events of poll(2) that report a closed peer. Only Linux has POLLRDHUP, which is set even if bytes are unread.
PEER_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Spawn(Protocol):
    """The type of `Nursery.start_soon` of the nursery that all connections run in."""

    def __call__(self, async_fn: Callable[[], Coroutine[Any, Any, None]], /) -> None: ...


@define
class Shared:
    """State that all connections of a server share."""

    broker: Broker
    apis: Mapping[int, Api]
    budget: ByteBudget
    spawn: Spawn
    scratch: bytearray = field(factory=lambda: bytearray(RECEIVE_BYTES))
    vigil: Vigil = field(init=False)
    complaints: LogLimit = field(factory=lambda: LogLimit(logger))
    produces: int = 0  # the number of produces in flight
    # The time on Trio's clock at which a drain cancels the requests still in flight.
    deadline: float = float("inf")

    def __attrs_post_init__(self) -> None:
        self.vigil = Vigil(counts_those_that_waited=not self.broker.store.is_elsewhere)


@define(eq=False)
class Reader:
    """A task of a connection, with the cancel scopes by which other tasks end its waits."""

    # Cancels waiting for a request.
    reading: trio.CancelScope = field(factory=trio.CancelScope)
    # Shielded from the first wait of a handler until its response is sent. Cancelling it ends the handler as well.
    handling: trio.CancelScope = field(factory=trio.CancelScope)
    # True if another task continues to read. This task then rests after it has sent its response.
    has_handed_over: bool = False
    # The Trio task, set when it first rests.
    task: trio.lowlevel.Task | None = None


@frozen
class Patience:
    """Limits of the time that clients may keep the broker waiting."""

    idle_s: float
    # An incomplete request must gain `min_rate` bytes a second, counted over spans of `progress_s`.
    progress_s: float
    min_rate: int
    # True if other requests wait for memory. Then a large request must be complete after `progress_s`.
    is_memory_scarce: bool = False
    # True if other responses wait for memory. Then a client must read some of its response in each `progress_s`.
    is_answer_memory_scarce: bool = False


@define
class Arrival:
    """Progress of an incomplete request between calls of `overdue`. Times are those of `monotonic`."""

    number: int  # the request's number in its connection
    began: float
    span_began: float  # the start of the span in which its rate is counted
    span_bytes: int  # the number of bytes received before the span


@define(eq=False)
class ServedConnection:
    """A connection and the tasks that serve it. `peer` is its name in logs."""

    sock: socket.socket
    peer: str
    listener_name: str
    shared: Shared
    closed: Callable[[ServedConnection], None] = lambda _: None
    connection: Connection = field(init=False)
    _readers: set[Reader] = field(factory=set)
    _offering: Reader | None = None  # a task that transfers reading once fewer requests are in flight
    _resting: list[Reader] = field(factory=list)
    _is_read_out: bool = False  # the read side is closed
    _tasks: int = 1  # tasks that run `serve`, or were started to run it
    _taken: int = 0  # requests read
    _answered: int = 0
    _unanswered_bytes: int = 0  # total size of the requests that are read and not answered
    # By request number: set when all earlier requests are answered.
    _turns: dict[int, trio.Event] = field(factory=dict)
    _share: Share | None = None  # the share of the budget of a request that has arrived in part
    _queued_s: float = 0.0  # seconds for which that request waited for memory
    _is_waiting_for_room: bool = False
    _arrival: Arrival | None = None
    _is_ending: bool = False
    _is_lost: bool = False  # the client has closed the connection, so unanswered requests are logged at DEBUG
    _is_sending: bool = False
    # When a request was last read, or bytes of a response were last sent.
    _active: float = field(factory=monotonic)
    _current: RequestContext | None = None

    def __attrs_post_init__(self) -> None:
        limit = self.shared.broker.config.socket_request_max_bytes
        self.connection = Connection(self.shared.apis, max_frame_bytes=limit)

    def __repr__(self) -> str:
        return f"<ServedConnection {self.peer} requests={self._taken} answered={self._answered}>"

    # --- From outside -----------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve requests until the client disconnects or violates the protocol, or the server ends. Close the socket.

        Raises only Cancelled. An error of one client is logged and ends only its connection. Requests that were read
        before the error are still answered, except the one that caused it.
        """
        reader = Reader()
        reader.handling.deadline = self.shared.deadline
        self._readers.add(reader)
        try:
            with reader.reading, reader.handling:
                await self._read_and_answer(reader)
        except (ProtocolError, Disconnect) as error:
            self.shared.complaints.warning("%s: connection closed: %s", self.peer, error)
        except OSError as error:
            self._is_lost = True
            logger.debug("%s: connection lost: %s", self.peer, error)
        except Exception:
            logger.exception("%s: connection closed by an error in korvet", self.peer)
        finally:
            self._readers.discard(reader)
            if not reader.has_handed_over:
                self._end_reading()
            self._tasks -= 1
            if not self._tasks:
                self._close()

    def drain(self, deadline: float) -> None:
        """Stop reading. Requests in flight may be answered until `deadline`, on Trio's clock."""
        self._is_ending = True
        for reader in self._readers:
            reader.reading.cancel()
            reader.handling.deadline = deadline

    def end(self) -> None:
        """End the connection immediately, even if requests are unanswered."""
        self._is_ending = True
        for reader in self._readers:
            reader.reading.cancel()
            reader.handling.cancel()

    @property
    def parked(self) -> trio.CancelScope | None:
        """The cancel scope of a current request that waits for records, or None."""
        return None if self._current is None else self._current.parked

    def overdue(self, now: float, patience: Patience) -> str:
        """Return why the client has kept the broker waiting for too long, or "". `now` is `monotonic()`.

        Call it often: the rate at which a request arrives is measured between calls.
        """
        is_working = self._taken != self._answered and not self._is_sending
        if is_working or self._is_waiting_for_room:
            # The broker does not read from the client in this state, so the time does not count.
            self._arrival = None
            return ""
        if now - self._active > patience.idle_s:
            return f"idle for {now - self._active:.0f} s"
        if self._is_sending and patience.is_answer_memory_scarce and now - self._active > patience.progress_s:
            return f"nothing of its answer was read for {now - self._active:.0f} s while others waited for memory"
        if self.connection.idle or self._is_sending:
            self._arrival = None
            return ""
        return self._too_slow(now, patience)

    def _too_slow(self, now: float, patience: Patience) -> str:
        arrived, seen = self.connection.arrived, self._arrival
        if seen is None or seen.number != self._taken:
            self._arrival = Arrival(self._taken, now, now, arrived)
            return ""
        if patience.is_memory_scarce and arrived > LARGE_FRAME and now - seen.began > patience.progress_s:
            return f"its request took {now - seen.began:.0f} s to arrive while others waited for memory"
        took = now - seen.span_began
        if took <= patience.progress_s:
            return ""
        count = arrived - seen.span_bytes
        if count < max(1, patience.min_rate * patience.progress_s):
            return f"{count} bytes of its request arrived in {took:.0f} s"
        seen.span_began, seen.span_bytes = now, arrived
        return ""

    # --- Requests ---------------------------------------------------------------------------------------

    async def _read_and_answer(self, reader: Reader) -> None:
        """Serve requests one after the other, until the read side is closed or this task is no longer needed."""
        slice_end = monotonic() + SLICE_S
        while not self._is_ending:
            request = self.connection.next_request()
            if request is NEED_DATA:
                if not await self._receive_some():
                    return
                slice_end = monotonic() + SLICE_S
                continue
            asked = monotonic()
            await self._serve(request, reader)
            now = monotonic()
            has_waited = reader.handling.shield
            if has_waited:
                reader.handling.shield = False
            self.shared.vigil.answered(asked, now, has_waited=has_waited)
            if reader.has_handed_over:
                if not await self._rest(reader):
                    return
                slice_end = monotonic() + SLICE_S
            elif now > slice_end:
                await trio.lowlevel.checkpoint()
                slice_end = monotonic() + SLICE_S

    async def _serve(self, request: Request, reader: Reader) -> None:
        """Handle one request and send its response."""
        number = self._taken
        self._taken += 1
        self._unanswered_bytes += request.frame_size
        self._active = monotonic()
        share = self._count(request)
        name, is_produce = request.api.name, request.api.key == PRODUCE
        self.shared.produces += is_produce
        counters = self.shared.broker.counters
        counters.received(name, request.frame_size)

        def about_to_wait() -> None:
            reader.handling.shield = True
            if (
                is_produce
                and context.is_submitted
                and not reader.has_handed_over
                and self._is_more_to_read(request)
            ):
                self._hand_over(reader)

        context = RequestContext(
            request.version, request.client_id, listener_name=self.listener_name, peer=self.peer
        )
        try:
            if not is_produce and self._answered != number:
                await self._turn(number, reader)
            counters.queued(name, self._queued_s + monotonic() - self._active)
            self._queued_s = 0.0
            self._current = context
            response = request.refusal
            if response is None:
                handling = request.api.handle(self.shared.broker, request.body, context)
                response = await watched(handling, about_to_wait)
            self._current = None
            counters.handled(name)
            if self._answered != number:
                await self._turn(number, reader)
            buffers = self.connection.send(request, response)
            response = None  # so that each buffer is freed as soon as it is sent
            counters.sent(name, await self._send(buffers, reader))
        except BaseException:
            # Responses are sent in order, so no later request can be answered either.
            self.end()
            raise
        finally:
            self._unanswered_bytes -= request.frame_size
            self.shared.produces -= is_produce
            self.shared.budget.give_back(request.frame_size, share)
            self.shared.broker.answers.change(-context.answer_bytes)
            if self._offering is reader:
                self._offering = None
        self._answer_next()

    def _hand_over(self, reader: Reader) -> None:
        """Let another task continue to read: now, or after the next response if too many requests are in flight."""
        if self._is_ending:
            return
        if self._has_enough_to_do:
            self._offering = reader
            return
        self._offering = None
        reader.has_handed_over = True
        if self._resting:
            self._wake(self._resting.pop(), is_to_read=True)
        else:
            self._tasks += 1
            self.shared.spawn(self.serve)

    @property
    def _has_enough_to_do(self) -> bool:
        """True if no further request may be read until one in flight is answered."""
        count = self._taken - self._answered
        if self._unanswered_bytes >= SMALL_PRODUCES_BYTES or self.shared.produces >= ALL_PRODUCES_AT_ONCE:
            return count >= PRODUCES_AT_ONCE
        return count >= SMALL_PRODUCES_AT_ONCE

    async def _rest(self, reader: Reader) -> bool:
        """Wait until another task transfers reading to this one. Return False if this task should end instead."""
        if self._is_read_out or len(self._resting) >= RESTING_AT_MOST:
            return False
        reader.task = trio.lowlevel.current_task()
        self._resting.append(reader)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._resting.remove(reader)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return not reader.has_handed_over

    def _wake(self, reader: Reader, *, is_to_read: bool) -> None:
        """Reschedule a reader that the caller has removed from `_resting`."""
        assert reader.task is not None  # noqa: S101  it has one while it rests
        reader.has_handed_over = not is_to_read
        trio.lowlevel.reschedule(reader.task)

    def _end_reading(self) -> None:
        """Mark the read side as closed, and end all resting tasks."""
        self._is_read_out = True
        resting, self._resting = self._resting, []
        for reader in resting:
            self._wake(reader, is_to_read=False)

    def _is_more_to_read(self, request: Request) -> bool:
        """Return True if the client has sent more, or will probably send more before `request` is answered."""
        # Another task costs about as much as a small request, and is useless to a client with one request in flight.
        if request.frame_size >= LARGE_REQUEST_BYTES or not self.connection.idle:
            return True
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the connection is lost; the task that continues to read reports it
        return True

    async def _turn(self, number: int, reader: Reader) -> None:
        """Wait until every request before this one is answered."""
        while self._answered != number:
            reader.handling.shield = True
            await self._turns.setdefault(number, trio.Event()).wait()

    def _answer_next(self) -> None:
        self._answered += 1
        waiting = self._turns.pop(self._answered, None)
        if waiting is not None:
            waiting.set()
        if self._offering is not None:
            self._hand_over(self._offering)

    def _count(self, request: Request) -> Share | None:
        """Take the request's bytes from the budget. Return the share it had while it arrived, which they include."""
        share, self._share = self._share, None
        self.shared.budget.take_now(request.frame_size - (share.size if share else 0))
        return share

    # --- Bytes ------------------------------------------------------------------------------------------

    async def _receive_some(self) -> bool:
        """Receive bytes of a request when there are any. Return False if the client has closed the connection."""
        if not self.connection.idle:
            return await self._receive_more()
        await trio.lowlevel.wait_readable(self.sock)
        return self._receive()

    async def _receive_more(self) -> bool:
        """Do the same after part of a request: count that part, and wait for memory if the request is large."""
        budget = self.shared.budget
        share = self._share = self._share or Share()
        budget.resize(share, self.connection.held_bytes)
        size = self.connection.pending_frame_size
        await trio.lowlevel.wait_readable(self.sock)
        if size is None or size <= LARGE_FRAME:
            return self._receive()
        await self._wait_for_room(share)
        try:
            self.connection.allow_frame()
            return self._receive()
        finally:
            budget.resize(share, self.connection.held_bytes)

    async def _wait_for_room(self, share: Share) -> None:
        began = monotonic()
        self._is_waiting_for_room = True
        try:
            await self.shared.budget.wait_for_room(share)
        finally:
            self._is_waiting_for_room = False
        self._queued_s += monotonic() - began

    def _receive(self) -> bool:
        buffer = self.connection.frame_buffer()
        try:
            if buffer is not None:
                count = self.sock.recv_into(buffer, min(len(buffer), BYTES_AT_ONCE))
                self.connection.buffer_filled(count)
            else:
                count = self.sock.recv_into(self.shared.scratch)
                self.connection.receive_data(memoryview(self.shared.scratch)[:count])
        except BlockingIOError:
            return True
        if not count and not self.connection.idle:
            raise ProtocolError("it went in the middle of a request")
        return count > 0

    async def _send(self, buffers: list[Buffer], reader: Reader) -> int:
        """Send the buffers without copying them, and release each when it is sent. Return the number of bytes.

        A client that does not read delays only its own connection.
        """
        size = sum(map(len, buffers))
        first = 0
        while first < len(buffers):
            try:
                sent = self.sock.sendmsg(portion(buffers, first))
            except BlockingIOError:
                sent = 0
            self._active = monotonic()
            while first < len(buffers) and sent >= len(buffers[first]):
                sent -= len(buffers[first])
                buffers[first] = b""
                first += 1
            if first < len(buffers):
                buffers[first] = memoryview(buffers[first])[sent:]
                await self._wait_for_the_client(reader)
        return size

    async def _wait_for_the_client(self, reader: Reader) -> None:
        """Wait until the socket accepts more bytes of a response."""
        reader.handling.shield = True
        self._is_sending = True
        try:
            await trio.lowlevel.wait_writable(self.sock)
        finally:
            self._is_sending = False

    def _close(self) -> None:
        if self._taken != self._answered and self._is_ending:
            level = logging.DEBUG if self._is_lost else logging.INFO
            logger.log(level, "%s: %d requests unanswered", self.peer, self._taken - self._answered)
        if self._share is not None:
            self.shared.budget.give_back(self._share.size, self._share)
        self.sock.close()
        self.closed(self)


def portion(buffers: list[Buffer], first: int) -> list[Buffer]:
    """Return the buffers from `first` that are sent in one call, the last one possibly in part."""
    end, room = first, BYTES_AT_ONCE
    while end < len(buffers) and end < first + BUFFERS_AT_ONCE and room > 0:
        room -= len(buffers[end])
        end += 1
    if room >= 0:
        return buffers[first:end]
    return [*buffers[first : end - 1], memoryview(buffers[end - 1])[:room]]


@types.coroutine
def watched(coroutine: Coroutine[Any, Any, T], about_to_wait: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await `coroutine`, and call `about_to_wait` each time before it suspends.

    If records are in memory, most requests never suspend. They do not pay for the work that only suspending requires.
    """
    argument = None
    try:
        while True:
            trap = coroutine.send(argument)
            about_to_wait()
            # Trio answers every trap with a value, never with an exception.
            argument = yield trap
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
