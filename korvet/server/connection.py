"""One client's connection: requests in, answers out, in order.

The task that reads a request works on it and answers it, and then reads the next: nothing is queued, and a client
that sends faster than it is served is simply not read. There is one exception. A Produce whose order is settled
(`RequestContext.submitted`), and which waits for the store all the same, lets a further task read on where more has
come, so that decoding the next batch and storing the last overlap; whoever has answered then rests until reading is
handed over to it. Each of them answers in its turn; any other request waits for all turns before it. On a store that
never waits there is only ever one task.

Waiting for a request can be cancelled. From the first wait of a handler on, the request is shielded until its answer
is out, at most until the deadline that a drain sets.

Sockets are used directly, without `trio.SocketStream`: it takes two rounds of the scheduler for what one does, and
cannot receive into a buffer or send a list of them.
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

# How many requests of a connection are worked on at once. Kafka's own clients have five in flight at most, librdkafka
# as many as it likes, down to one for each batch of a partition: so many small ones may go to the store together.
PRODUCES_AT_ONCE = 5
SMALL_PRODUCES_AT_ONCE = 50
SMALL_PRODUCES_BYTES = 1 << 20
# Of all connections, from which on each of them has to do with the fewer. What thousands at once take of the
# interpreter's memory is not given back: there is something left in each part of it.
ALL_PRODUCES_AT_ONCE = 600
# Tasks that may wait to take over reading. Beginning a new one costs as much as a small request.
RESTING_AT_MOST = 2
RECEIVE_BYTES = 64 * 1024
# A Produce of that size takes the store long enough for the next one to come meanwhile.
LARGE_REQUEST_BYTES = 64 * 1024
# The system's limit of buffers in one sendmsg (IOV_MAX).
BUFFERS_AT_ONCE = 1024
# What is copied to or from a socket in one turn: a quarter of a millisecond. There may be room for ten times as much.
BYTES_AT_ONCE = 512 * 1024
# How long requests that lie in memory already may be worked on before other connections have their turn.
SLICE_S = 0.0005
# Told by the system that the other side closed; Linux alone tells so while there are bytes left to read.
PEER_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Spawn(Protocol):
    """`Nursery.start_soon`, of the nursery all connections live in."""

    def __call__(self, async_fn: Callable[[], Coroutine[Any, Any, None]], /) -> None: ...


@define
class Shared:
    """What all connections of a server have in common."""

    broker: Broker
    apis: Mapping[int, Api]
    budget: ByteBudget
    spawn: Spawn
    scratch: bytearray = field(factory=lambda: bytearray(RECEIVE_BYTES))
    vigil: Vigil = field(init=False)
    complaints: LogLimit = field(factory=lambda: LogLimit(logger))
    produces: int = 0  # that are worked on
    # When a drain ends whatever is still worked on, on Trio's clock.
    deadline: float = float("inf")

    def __attrs_post_init__(self) -> None:
        self.vigil = Vigil(counts_those_that_waited=not self.broker.storage.is_elsewhere)


@define(eq=False)
class Reader:
    """A task of a connection: what it waits for, and how that is ended from outside."""

    # Ends waiting for a request.
    reading: trio.CancelScope = field(factory=trio.CancelScope)
    # Shielded while a request is worked on; ends that as well.
    handling: trio.CancelScope = field(factory=trio.CancelScope)
    # Whether another task has taken over reading; this one rests when its request is answered.
    has_handed_over: bool = False
    # While it rests.
    task: trio.lowlevel.Task | None = None


@frozen
class Patience:
    """Limits of the time that clients may keep the broker waiting."""

    idle_s: float
    # An incomplete request must gain `min_rate` bytes a second, counted over spans of `progress_s`.
    progress_s: float
    min_rate: int
    # Whether other requests wait for memory. Then a large request must be complete after `progress_s`.
    is_memory_scarce: bool = False
    # Whether other answers wait for memory. Then a client must take some of its answer in each `progress_s`.
    is_answer_memory_scarce: bool = False


@define
class Arrival:
    """Progress of an incomplete request between calls of `overdue`. Times are those of `monotonic`."""

    number: int  # of the request, among those of its connection
    began: float
    span_began: float  # the start of the span in which its rate is counted
    span_bytes: int  # the bytes that had arrived by then


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
    _offering: Reader | None = None  # one that could hand over, if fewer requests were being worked on
    _resting: list[Reader] = field(factory=list)
    _is_read_out: bool = False  # nobody reads any more
    _tasks: int = 1  # those that serve it, or are about to
    _taken: int = 0  # requests read
    _answered: int = 0
    _unanswered_bytes: int = 0  # of the requests read
    _turns: dict[int, trio.Event] = field(factory=dict)
    _share: Share | None = None  # of the budget, if a request has arrived in part
    _queued_s: float = 0.0  # how long that one waited for room
    _is_waiting_for_room: bool = False
    _arrival: Arrival | None = None
    _is_ending: bool = False
    _is_lost: bool = False  # the client has gone: what it asked for and does not read is no news
    _is_sending: bool = False
    _active: float = field(factory=monotonic)  # when a request was read, or the client took part of an answer
    _current: RequestContext | None = None

    def __attrs_post_init__(self) -> None:
        limit = self.shared.broker.config.socket_request_max_bytes
        self.connection = Connection(self.shared.apis, max_frame_bytes=limit)

    def __repr__(self) -> str:
        return f"<ServedConnection {self.peer} requests={self._taken} answered={self._answered}>"

    # --- From outside -----------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read and answer until the client goes, breaks the protocol, or the server ends. Closes at the end.

        Never raises but Cancelled: what goes wrong with one client is logged, and ends its connection alone. What was
        read before is still answered, unless it is what went wrong.
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
        """Read nothing more; what is being worked on may be answered until `deadline`, on Trio's clock."""
        self._is_ending = True
        for reader in self._readers:
            reader.reading.cancel()
            reader.handling.deadline = deadline

    def end(self) -> None:
        """End it now, answered or not."""
        self._is_ending = True
        for reader in self._readers:
            reader.reading.cancel()
            reader.handling.cancel()

    @property
    def parked(self) -> trio.CancelScope | None:
        """Where the current request waits for records that may come much later, if it does."""
        return None if self._current is None else self._current.parked

    def overdue(self, now: float, patience: Patience) -> str:
        """Return why the client has kept the broker waiting for too long, or "". `now` is `monotonic()`.

        To be called often: the rate at which a request arrives is counted from one call to the next.
        """
        is_working = self._taken != self._answered and not self._is_sending
        if is_working or self._is_waiting_for_room:
            # The broker does not read meanwhile, so the time does not count.
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
        """Serve requests one after the other, until there are no more, or another task has taken over reading."""
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
        """Work on one request and answer it."""
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
            response = None  # so that what is sent is freed as it goes
            counters.sent(name, await self._send(buffers, reader))
        except BaseException:
            # Whatever comes behind an answer that was never given cannot be answered either.
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
        """Let another task read on; where enough requests are being worked on, once one of them is answered."""
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
        """Whether another request is worked on only once one of these is answered."""
        count = self._taken - self._answered
        if self._unanswered_bytes >= SMALL_PRODUCES_BYTES or self.shared.produces >= ALL_PRODUCES_AT_ONCE:
            return count >= PRODUCES_AT_ONCE
        return count >= SMALL_PRODUCES_AT_ONCE

    async def _rest(self, reader: Reader) -> bool:
        """Wait to take over reading again; False when there is no need to."""
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
        """The reader was resting, and is not among those any more."""
        assert reader.task is not None  # noqa: S101  it has one while it rests
        reader.has_handed_over = not is_to_read
        trio.lowlevel.reschedule(reader.task)

    def _end_reading(self) -> None:
        """There is nothing more to be read, so nothing to take over."""
        self._is_read_out = True
        resting, self._resting = self._resting, []
        for reader in resting:
            self._wake(reader, is_to_read=False)

    def _is_more_to_read(self, request: Request) -> bool:
        """Whether the client has sent more, or is likely to before this is answered.

        A task that reads on costs about as much as a small request, and who sends one at a time has no use for it.
        """
        if request.frame_size >= LARGE_REQUEST_BYTES or not self.connection.idle:
            return True
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass  # it is lost, which is for whoever reads on to tell
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
        """Take the request's bytes from the budget; return the share that it had while it arrived, which is in them."""
        share, self._share = self._share, None
        self.shared.budget.take_now(request.frame_size - (share.size if share else 0))
        return share

    # --- Bytes ------------------------------------------------------------------------------------------

    async def _receive_some(self) -> bool:
        """Wait for bytes of a request and take them; return whether there are more to come."""
        if not self.connection.idle:
            return await self._receive_more()
        await trio.lowlevel.wait_readable(self.sock)
        return self._receive()

    async def _receive_more(self) -> bool:
        """The same, if part of a request is here: count that part, and wait for memory if the request is large."""
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
        """Send buffers one after the other, as they are, and let go of each that is sent; the number of bytes.

        A client that does not read holds up itself alone.
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
        """Wait until it has taken some of an answer."""
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
    """What of the buffers from `first` on is sent in one turn, the last of them maybe in part."""
    end, room = first, BYTES_AT_ONCE
    while end < len(buffers) and end < first + BUFFERS_AT_ONCE and room > 0:
        room -= len(buffers[end])
        end += 1
    if room >= 0:
        return buffers[first:end]
    return [*buffers[first : end - 1], memoryview(buffers[end - 1])[:room]]


@types.coroutine
def watched(coroutine: Coroutine[Any, Any, T], about_to_wait: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await `coroutine`, and call `about_to_wait` each time before it lets other tasks run.

    Most requests never wait, when records are in memory: what only waiting makes necessary is done here, and costs
    them nothing.
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
