"""One client's connection: read requests and send responses, in order.

One task reads a request, handles it, sends its response, and then reads the next request. Requests are not queued: the
broker does not read from a client that sends faster than it is served. There is one exception. While the response to a
Produce is pending (`PendingResponse`), the next Produce requests are handled. So the broker decodes the next batch
while the store appends the previous one. A request other than Produce is not handled until all earlier requests are
answered, and no other one until it is.

Functions without `async` do what takes no wait: `_serve_now` handles a request and sends its response. Other tasks call
them as well. While the first task waits for a request, the transport calls `_serve_arrived` when bytes have arrived,
and wakes the first task only if that returns False. If the store can notify, it calls `_known` when it has answered. A
second task, the responder, sends responses that the client has no room for, and waits for the
results of a store that cannot notify, if the client has sent more.

Both tasks run in the connection's nursery and end with it. Waiting for a request can be cancelled. A request that was
read is shielded until its response is sent, or until the deadline that a drain sets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import Any, Final

import trio
from attrs import define, field

from korvet.broker.authorization import log_decisions
from korvet.broker.broker import Broker
from korvet.broker.context import CutShort, Disconnect, PendingResponse, RequestContext
from korvet.broker.limits import Reservation
from korvet.concurrency.decoded_budget import DecodedBudget, DecodedReservation
from korvet.concurrency.time_slices import run_in_slices
from korvet.logs import LogLimit
from korvet.protocol.buffers import Buffer
from korvet.protocol.connection import NEED_DATA, PRODUCE, Api, Connection, LargeRequest, Request
from korvet.protocol.errors import ProtocolError
from korvet.protocol.frames import LARGE_FRAME
from korvet.protocol.requests import API_VERSIONS
from korvet.protocol.text import is_software
from korvet.security.session import ANONYMOUS, Session, State
from korvet.server.busy_poll import BusyPoll
from korvet.server.patience import Patience, Progress
from korvet.server.readiness import Readiness
from korvet.server.receiving import Receiver, RequestMemory
from korvet.server.transport import Transport

logger = logging.getLogger(__name__)

# Limits of in-flight produces per connection. Kafka's Java client has at most five requests in flight. librdkafka has
# no such limit and may send one request per batch of a partition, so more small produces may be in the store together.
PRODUCES_AT_ONCE: Final = 5
SMALL_PRODUCES_AT_ONCE: Final = 50
SMALL_PRODUCES_BYTES: Final = 1 << 20
# Total number of in-flight produces from which each connection is limited to PRODUCES_AT_ONCE. Thousands of concurrent
# produces fragment the interpreter's memory, so that it is not returned to the system.
ALL_PRODUCES_AT_ONCE = 600
# The store needs so long for a Produce of this size that the next one arrives in the meantime.
LARGE_REQUEST_BYTES: Final = 64 * 1024
# Time slice of a connection whose requests are already in memory, after which other connections run.
SLICE_S: Final = 0.0005
# If a connection sends many small requests to one API, only one in this time has its phases timed for metrics.
TIMED_EVERY_S: Final = 0.005
# Estimated memory for the objects of a large request and its response, per byte of the request; the total for requests
# that are decoded or answered. A Metadata of 1,000,000 names of 7 characters takes 29 bytes per byte.
OBJECT_BYTES: Final = 30
OBJECTS_BYTES: Final = 128 << 20
# Limit of the log lines about bytes left over behind requests. A client may call its software anything.
SOFTWARE_LOGGED: Final = 100
# Limit of the time for a TLS handshake.
HANDSHAKE_S: Final = 30.0


@define
class Shared:
    """State that all connections of a server share."""

    broker: Broker
    apis: Mapping[int, Api]
    memory: RequestMemory
    readiness: Readiness | None = None  # waits for the clients' bytes
    busy_poll: BusyPoll = field(init=False)
    complaints: LogLimit = field(factory=lambda: LogLimit(logger))
    objects: DecodedBudget = field(factory=lambda: DecodedBudget(OBJECTS_BYTES))
    produces: int = 0  # the number of produces in flight
    ended_last: trio.Event | None = None  # set when no Produce is in flight; None if no task waits for that
    # Software and API of requests with bytes left over that were logged.
    leaving: set[tuple[str, str]] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.busy_poll = BusyPoll(is_useful=not self.broker.store.is_elsewhere)

    async def no_produces(self) -> None:
        """Wait until no Produce is in flight."""
        while self.produces:
            self.ended_last = trio.Event()
            await self.ended_last.wait()


@define(eq=False)
class Exchange:
    """A request that was read, until its response is sent."""

    request: Request
    is_produce: bool
    context: RequestContext
    reservation: Reservation | None  # what the request held while it arrived
    began: float
    received_s: float = 0.0  # the times of its phases, if the broker counts them
    queued_s: float = 0.0
    handled_at: float = 0.0
    answered_at: float = 0.0
    is_handled: bool = False  # the handler was called
    handling: CoroutineType[Any, Any, object] | None = None  # the rest of the handler's work, which may wait
    response: object | None = None
    pending: PendingResponse | None = None
    is_notified: bool = False  # `pending` calls `_known` once its response is known
    is_known: bool = False  # it has
    rest: CoroutineType[Any, Any, object] | None = None  # what remains to be waited for then
    unsent: list[Buffer] | None = None  # the encoded response, or the rest of it
    first_unsent: int = 0  # the index of the first buffer that was not sent whole
    size: int = 0  # of the encoded response, in bytes


@define(eq=False)
class ServedConnection:
    """A connection and the tasks that serve it. `peer` is its name in logs."""

    transport: Transport
    peer: str
    listener_name: str
    shared: Shared
    closed: Callable[[ServedConnection], None] = lambda _: None
    session: Session | None = None  # None on a listener without SASL
    software: tuple[str, str] | None = None  # name and version, once the client has sent them
    progress: Progress = field(factory=Progress)
    incoming: Connection = field(init=False)
    receiver: Receiver = field(init=False)
    _nursery: trio.Nursery | None = None  # owns all that this client causes
    _is_receiving: bool = False  # the first task waits for a request
    _is_ending: bool = False  # no further request is read
    _is_ended: bool = False  # no further response is sent
    _at_disconnect: dict[object, Callable[[], None]] = field(factory=dict)
    _is_lost: bool = False  # the client has closed the connection, so unanswered requests are logged at DEBUG
    _current: Exchange | None = None  # the one that the first task handles
    # Those of the responder, in the order of the requests. There are few, and an empty deque takes 600 bytes.
    _pending: list[Exchange] = field(factory=list)
    _has_responder: bool = False
    # The responder waits here while it has no response to wait for, and the first task while too many are pending.
    _other_task: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)
    _principal: str = ANONYMOUS
    _client_id: str | None = None  # of the last request
    _throttled_until: float = 0.0  # on Trio's clock; no request is read before
    _throttled: trio.CancelScope | None = None  # of the first task, while it waits for that
    _objects: DecodedReservation | None = None  # for the objects of the request being decoded, if it is large
    _unanswered_bytes: int = 0  # total size of the requests in flight
    _slice_end: float = 0.0
    # The last request had to wait. The next one is probably like it, so the first task does not leave it to another.
    _has_waited: bool = False
    _timed: Api | None = None  # the API of the last request whose phases were timed
    _timed_again_at: float = 0.0  # when another request of it is timed

    def __attrs_post_init__(self) -> None:
        limit = self.shared.broker.config.socket_request_max_bytes
        self.incoming = Connection(self.shared.apis, max_frame_bytes=limit)
        self.receiver = Receiver(self.transport, self.incoming.frames, self.shared.memory, self.progress)
        if self.session is not None:
            self.incoming.frames.max_frame_bytes = self.session.sasl.max_receive_bytes
            self._follow(self.session)

    def __repr__(self) -> str:
        done = self.progress
        return f"<ServedConnection {self.peer} requests={done.taken} answered={done.answered}>"

    # --- From outside -----------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve requests until the client disconnects or violates the protocol, or the server ends. Close the socket.

        Raises only Cancelled. An error of one client is logged and ends only its connection. If the client disconnects
        or violates the protocol, requests that were read before are still answered.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.cancel_scope.shield = True
                self._nursery = nursery
                if await self._is_prepared():
                    await self._serve_requests()
                nursery.cancel_scope.cancel()  # the responder, which waits for more
        finally:
            self._close()

    def drain(self, deadline: float) -> None:
        """Stop reading. Requests in flight may be answered until `deadline`, on Trio's clock."""
        self._is_ending = True
        if self._nursery is not None:
            self._nursery.cancel_scope.deadline = deadline
            self._end_if_idle()

    def end(self) -> None:
        """End the connection immediately, even if requests are unanswered."""
        self._is_ending = self._is_ended = True
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    @property
    def parked(self) -> trio.CancelScope | None:
        """The cancel scope of a wait that ends if the client disconnects: for records, or for a quota. Or None."""
        if self._pending and (scope := self._pending[0].context.parked) is not None:
            return scope
        return self._throttled if self._current is None else self._current.context.parked

    def overdue(self, now: float, patience: Patience) -> str:
        """Return why the client has kept the broker waiting for too long, or ""."""
        if self.session is not None and not self.session.is_authenticated:
            connected_s = now - self.progress.connected
            if connected_s > patience.login_s:
                return f"it has not authenticated in {connected_s:.0f} s"
        return self.progress.overdue(now, patience, self.incoming.frames)

    # --- The first task: requests -----------------------------------------------------------------------

    async def _is_prepared(self) -> bool:
        """Do the handshake. Return False if it fails, or if a drain began before."""
        try:
            with trio.move_on_after(HANDSHAKE_S) as limit:
                self._is_receiving = True
                await self.transport.handshake()
                self._is_receiving = False
            if limit.cancelled_caught:
                raise ProtocolError(f"TLS handshake: it is not complete after {HANDSHAKE_S:.0f} s")
        except (ProtocolError, OSError) as error:
            self._log(error)
            return False
        if self.session is None and self.transport.username is not None:
            self._principal = f"User:{self.transport.username}"
        return not self._is_ending

    async def _serve_requests(self) -> None:
        """Serve requests one after the other, and return when all are answered."""
        try:
            while await self._takes_request():
                if self._current is not None:
                    await self._serve(self._current)
                if self.progress.active > self._slice_end:
                    # Other connections would starve beside a client that has sent many requests in advance.
                    await trio.lowlevel.checkpoint()
                    self._slice_end = monotonic() + SLICE_S
            await self._until_nothing_is_pending()
        except Exception as error:  # noqa: BLE001  logged
            self._end_by(error)

    async def _takes_request(self) -> bool:
        """Take the next request. It is the current one if it was not served without waiting.

        Return False if there is none because the client has disconnected, or a drain began.
        """
        try:
            while not self._is_ending:
                if self._pending and self._has_enough_to_do:
                    await self._other_task.park()
                    continue
                if self._throttled_until:
                    await self._wait_until_unthrottled()
                request = self.incoming.begin_request()
                if isinstance(request, LargeRequest):
                    request = await self._decode(request)
                if isinstance(request, Request):
                    break
                if self.receiver.is_over:
                    return False
                self._is_receiving = True
                if not self.incoming.frames.idle:
                    await self.receiver.receive_more()
                elif self._has_waited:
                    await self.transport.wait_readable()
                    self.receiver.receive()
                else:
                    await self.transport.serve_readable(self._serve_arrived)
                self._is_receiving = False
                if self._current is not None:
                    return True
                self._slice_end = monotonic() + SLICE_S
            else:
                return False
        except (ProtocolError, OSError) as error:
            self._log(error)
            return False
        self._serve_now(request)
        return True

    def _serve_arrived(self) -> bool:
        """Receive bytes, and serve the requests in them. Return False if the first task has to go on."""
        self.receiver.receive()
        self._slice_end = monotonic() + SLICE_S
        if self.shared.broker.quotas.measures_times:
            return False  # these are the times of the connections' own tasks
        frames = self.incoming.frames
        while not (self._is_ending or self._throttled_until):
            if frames.idle:
                return not self.receiver.is_over
            request = self.incoming.begin_request()
            if not isinstance(request, Request):
                assert request is NEED_DATA  # noqa: S101  a large request needs several calls of `receive`
                break
            self._serve_now(request)
            if (
                self._current is not None
                or self.progress.active > self._slice_end
                or (self._pending and self._has_enough_to_do)
            ):
                break
        return False

    async def _decode(self, request: LargeRequest) -> Request:
        """Decode a large request once there is memory for its objects. Raises ProtocolError."""
        if request.api_key != PRODUCE:  # the body of a Produce refers to the frame
            self._objects = DecodedReservation(self.shared.objects)
            await self._objects.take(request.frame_size * OBJECT_BYTES)
        return await run_in_slices(request.decode)

    async def _wait_until_unthrottled(self) -> None:
        """Wait until the client may send again, or has disconnected.

        A large request that has arrived in part is received before, since it holds memory that other requests need.
        """
        while not self._is_ending and not self.receiver.is_amid_large:
            left_s = self._throttled_until - trio.current_time()
            if left_s <= 0 or await self._has_disconnected_within(left_s):
                self._throttled_until = 0.0
                return

    async def _has_disconnected_within(self, seconds: float) -> bool:
        """Wait for that time, or until the client has disconnected. Return True if it has."""
        self._is_receiving = True
        with trio.move_on_after(seconds) as self._throttled:
            await trio.sleep_forever()
        is_early = trio.current_time() < self._throttled.deadline
        self._is_receiving, self._throttled = False, None
        self.progress.resumed()
        return is_early

    def _serve_now(self, request: Request) -> None:
        """Handle a request and send its response. It stays the current one if that has to wait for something."""
        exchange = self._begin(request)
        self._has_waited = True
        if self.session is not None and self.session.has_expired(request.api.key):
            raise Disconnect("its session has expired, and it does not authenticate again")
        if self._pending and self._is_held_up(exchange):
            return
        self._handle(exchange)
        if exchange.handling is not None or request.frame_size > LARGE_FRAME:
            return
        if exchange.pending is not None:
            self._has_waited = not self._is_left_to_store(exchange)
        elif not self._pending and self._answers_now(exchange):
            self._has_waited = False

    def _is_held_up(self, exchange: Exchange) -> bool:
        """Return True if the pending requests have to be answered before this one is handled."""
        return not (exchange.is_produce and self._pending[0].is_produce)

    def _is_left_to_store(self, exchange: Exchange) -> bool:
        """Return True if the store notifies when the current exchange, of a small request, can be answered."""
        request, pending = exchange.request, exchange.pending
        if (
            pending is None
            or request.frame_size > LARGE_FRAME
            or self.shared.broker.quotas.measures_times  # it would be the time of the store's task
            or not pending.notify(partial(self._known, exchange))
        ):
            return False
        exchange.is_notified = True
        self._pending.append(exchange)
        self._current = None
        return True

    def _handle(self, exchange: Exchange) -> None:
        """Call the handler, and keep the response, or what has to be waited for."""
        request, context = exchange.request, exchange.context
        if self.receiver.queued_s:
            exchange.queued_s, self.receiver.queued_s = self.receiver.queued_s, 0.0
            context.is_timed = True
        if request.left_over:
            self._report_left_over(request)
        exchange.is_handled = True
        broker, response = self.shared.broker, request.refusal
        if response is None:
            response = request.api.handle(broker, request.body, context)
        if isinstance(response, CoroutineType):
            exchange.handling = response
        else:
            self._handled(exchange, response)

    def _handled(self, exchange: Exchange, response: object) -> None:
        """Keep what the handler has returned."""
        if isinstance(response, PendingResponse):
            exchange.pending = response
        else:
            exchange.response = response
        if self.shared.broker.counters.is_counting:
            exchange.handled_at = exchange.answered_at = monotonic()

    async def _serve(self, exchange: Exchange) -> None:
        """Go on with the current request: wait for what has to be waited for, or leave that to the responder."""
        request = exchange.request
        if self._pending and self._is_held_up(exchange):
            await self._until_nothing_is_pending()
            self.receiver.queued_s += monotonic() - exchange.began
        if not exchange.is_handled:
            self._handle(exchange)
        if exchange.handling is not None:
            try:
                response = await exchange.handling
            except CutShort as cut:
                await self._send_first_half(exchange, cut.response)
                raise
            self._handled(exchange, response)
        if exchange.pending is not None:
            if self._is_left_to_store(exchange):
                return
            if exchange.is_produce and (self._pending or self._has_more(request)):
                await self._respond_later(exchange)
                return
        if self._pending:
            await self._until_nothing_is_pending()
            exchange.answered_at = monotonic()
        await self._answer(exchange)
        if exchange.pending is not None:
            self._slice_end = self.progress.active + SLICE_S  # others ran while the store had not answered

    def _follow(self, session: Session) -> None:
        """Accept the requests that the session's state allows, or none after a failed authentication."""
        self._principal = session.principal
        self.incoming.accepted, self.incoming.is_bare = session.accepted, session.is_bare
        if session.state is State.AUTHENTICATED:
            self.incoming.frames.max_frame_bytes = self.shared.broker.config.socket_request_max_bytes
        elif session.state is State.FAILED:
            self._is_ending = True

    def _identify(self, request: Request) -> None:
        """Record the client's software, which ApiVersions names from v3 (KIP-511)."""
        if self.software is not None or request.body is None:
            return
        name, version = request.body.client_software_name, request.body.client_software_version
        if is_software(name, version):
            self.software = (name, version)
            self.shared.broker.counters.identified(self.listener_name, name, version)

    def _report_left_over(self, request: Request) -> None:
        """Count a request with bytes behind its body, and log it once for each software and API."""
        api = request.api.name
        self.shared.broker.counters.left_over(api)
        software = "/".join(self.software) if self.software else "software without a name"
        if (software, api) not in self.shared.leaving and len(self.shared.leaving) < SOFTWARE_LOGGED:
            self.shared.leaving.add((software, api))
            fields = {"software": software, "left_over": request.left_over, "version": request.version}
            logger.info(
                "%(peer)s: ignored %(left_over)d bytes behind a request %(api)s v%(version)d of %(software)s",
                self._fields() | fields,
            )

    def _begin(self, request: Request) -> Exchange:
        """Count a request that was read."""
        progress, shared, receiver = self.progress, self.shared, self.receiver
        progress.taken += 1
        progress.active = began = monotonic()
        self._client_id = request.client_id
        api, size = request.api, request.frame_size
        context = RequestContext(
            request.version,
            request.client_id,
            self._principal,
            self.listener_name,
            self.session,
            self.peer,
            api.name,
            size,
        )
        context.at_disconnect = self._at_disconnect
        if self._objects is not None:
            context.objects, self._objects = self._objects, None
        reservation = receiver.reservation
        if reservation is None:
            shared.memory.budget.take_now(size)
        else:
            receiver.take(reservation, size)
        is_produce = api.key == PRODUCE
        self._current = exchange = Exchange(request, is_produce, context, reservation, began)
        if receiver.arriving_since:
            exchange.received_s = began - receiver.arriving_since
            receiver.arriving_since = 0.0
            context.is_timed = True
        self._unanswered_bytes += size
        shared.produces += is_produce
        counters = shared.broker.counters
        counters.received(api.name)
        if counters.is_counting and (
            began >= self._timed_again_at or api is not self._timed or size >= LARGE_REQUEST_BYTES
        ):
            self._timed, self._timed_again_at = api, began + TIMED_EVERY_S
            context.is_timed = True
        return exchange

    def _has_more(self, request: Request) -> bool:
        """Return True if the client has sent more, or will probably send more before `request` is answered."""
        # The responder costs about as much as a small request, and is useless to a client with one request in flight.
        return (
            request.frame_size >= LARGE_REQUEST_BYTES
            or not self.incoming.frames.idle
            or self.transport.has_arrived()
        )

    async def _respond_later(self, exchange: Exchange) -> None:
        """Pass an exchange to the responder, and wait until another request may be in flight."""
        self._pending.append(exchange)
        self._current = None
        if (quotas := self.shared.broker.quotas).is_enforced:
            quotas.worked(exchange.context)
        self._start_responder()

    def _start_responder(self) -> None:
        """Start the second task, or wake it."""
        if not self._has_responder:
            self._has_responder = True
            assert self._nursery is not None  # noqa: S101  it is there while requests are served
            self._nursery.start_soon(self._respond, name=f"responses to {self.peer}")
        self._other_task.unpark_all()

    @property
    def _has_enough_to_do(self) -> bool:
        """True if no further request may be read until one in flight is answered."""
        count = len(self._pending)
        if self._unanswered_bytes >= SMALL_PRODUCES_BYTES or self.shared.produces >= ALL_PRODUCES_AT_ONCE:
            return count >= PRODUCES_AT_ONCE
        return count >= SMALL_PRODUCES_AT_ONCE

    async def _until_nothing_is_pending(self) -> None:
        while self._pending:
            await self._other_task.park()

    # --- The second task, and responses -----------------------------------------------------------------

    async def _respond(self) -> None:
        """Answer pending exchanges in order, until cancelled."""
        try:
            while True:
                while not self._pending or (self._pending[0].is_notified and not self._pending[0].is_known):
                    await self._other_task.park()
                await self._answer(self._pending[0])
                self._end_first()
        except Exception as error:  # noqa: BLE001  logged
            self._end_by(error)

    def _known(self, exchange: Exchange) -> None:
        """Note that the store has answered, and send the responses that are known, in order.

        Called by the task that has received the answer. A response that the client has to read first is left to the
        responder.
        """
        exchange.is_known = True
        pending = self._pending
        try:
            while pending and pending[0].is_known and pending[0].unsent is None and not self._is_ended:
                if not (self._takes_known_response(pending[0]) and self._answers_now(pending[0])):
                    self._start_responder()
                    return
                self._end_first()
        except Exception as error:  # noqa: BLE001  logged
            self._end_by(error)

    def _takes_known_response(self, exchange: Exchange) -> bool:
        """Take the response of a request whose store has answered. Return False if it has to be waited for."""
        assert exchange.pending is not None  # noqa: S101  it has called `_known`
        response = exchange.pending.response()
        if isinstance(response, CoroutineType):
            exchange.rest = response
            return False
        exchange.response = response
        if self.shared.broker.counters.is_counting:
            exchange.answered_at = monotonic()
        return True

    def _end_first(self) -> None:
        """Remove the first pending exchange, which was answered."""
        del self._pending[0]
        self._other_task.unpark_all()
        if self._is_ending:
            self._end_if_idle()

    async def _answer(self, exchange: Exchange) -> None:
        """Send the response, after waiting for it if it is pending."""
        request = exchange.request
        if exchange.is_known:
            if exchange.unsent is None and (
                exchange.rest is not None or not self._takes_known_response(exchange)
            ):
                assert exchange.rest is not None  # noqa: S101  it is what has to be waited for
                exchange.response = await exchange.rest
                exchange.answered_at = monotonic()
        elif exchange.pending is not None:
            exchange.response = await exchange.pending.wait()
            exchange.answered_at = monotonic()
        if exchange.unsent is None:
            buffers = None
            if request.frame_size > LARGE_FRAME:
                self._throttle(exchange)
                buffers = await run_in_slices(self.incoming.send_in_steps(request, exchange.response))
                request.body = None  # a client may read the response slowly
                exchange.context.release_objects()
            if self._answers_now(exchange, buffers):
                return
        try:
            await self._send(exchange)
        except BaseException:
            self._count_unsent(exchange)
            raise
        self._answered(exchange)

    def _answers_now(self, exchange: Exchange, buffers: list[Buffer] | None = None) -> bool:
        """Send the response, `buffers` if it is encoded. Return False if the client has to read some of it first."""
        if buffers is None:
            if self.shared.broker.quotas.is_enforced:
                self._throttle(exchange)
            buffers = self.incoming.send(exchange.request, exchange.response)
        counters, context = self.shared.broker.counters, exchange.context
        if context.decisions is not None:
            log_decisions(context)
        if counters.is_counting and exchange.response is not context.success:
            counters.failed(exchange.request.api.name, exchange.response)
        exchange.response = context.success = None  # they would keep the buffers that are sent already
        exchange.unsent = buffers
        exchange.size = sum(map(len, buffers))
        try:
            if not self._sends_all(exchange):
                return False
        except OSError:
            self._count_unsent(exchange)
            raise
        self._answered(exchange)
        return True

    def _answered(self, exchange: Exchange) -> None:
        """Count a request whose response was sent, and release what it holds."""
        if (counters := self.shared.broker.counters).is_counting:
            counters.answered(exchange, exchange.size, self.progress.active)
        self.progress.answered += 1
        self._release(exchange, exchange.size)
        if (busy_poll := self.shared.busy_poll).is_useful:
            has_waited = exchange.pending is not None or exchange.context.has_parked
            busy_poll.answered(exchange.began, self.progress.active, has_waited=has_waited)
        if self._current is exchange:
            self._current = None
            if self.session is not None:
                self._follow(self.session)
            if exchange.request.api.key == API_VERSIONS:
                self._identify(exchange.request)

    def _count_unsent(self, exchange: Exchange) -> None:
        if (counters := self.shared.broker.counters).is_counting:
            counters.answered(exchange, 0, self.progress.active)

    def _throttle(self, exchange: Exchange) -> None:
        """Tell a client over its quota how long it has to wait, and read no further request in that time."""
        quotas = self.shared.broker.quotas
        if not quotas.is_enforced or self.incoming.accepted is not None:  # it has not authenticated yet
            return
        throttle_ms = quotas.settle(exchange.context)
        if not throttle_ms:
            return
        self._throttled_until = max(self._throttled_until, trio.current_time() + throttle_ms / 1000)
        if hasattr(exchange.response, "throttle_time_ms"):
            exchange.response.throttle_time_ms = throttle_ms

    async def _send(self, exchange: Exchange) -> None:
        """Send the rest of a response, when the client has read enough of what was sent before."""
        while not self._sends_all(exchange):
            self.progress.is_sending = True
            await self.transport.wait_writable()
            self.progress.is_sending = False

    def _sends_all(self, exchange: Exchange) -> bool:
        """Send the rest of a response without copying it, and release each buffer that is sent.

        Return False if the client has to read some of it first. That delays only its own connection.
        """
        buffers, first = exchange.unsent, exchange.first_unsent
        if not buffers:
            return True
        sent = self.transport.send(buffers, first)
        self.progress.active = monotonic()
        if sent == exchange.size:
            return True
        while first < len(buffers) and sent >= len(buffers[first]):
            sent -= len(buffers[first])
            buffers[first] = b""
            first += 1
        exchange.first_unsent = first
        if first == len(buffers):
            return True
        buffers[first] = memoryview(buffers[first])[sent:]
        return False

    async def _send_first_half(self, exchange: Exchange, response: object) -> None:
        await self._until_nothing_is_pending()
        data = b"".join(self.incoming.send(exchange.request, response))
        exchange.size = len(data) // 2
        exchange.unsent = [data[: exchange.size]]
        await self._send(exchange)

    # --- Ends -------------------------------------------------------------------------------------------

    def _end_if_idle(self) -> None:
        """End the connection, which reads no further request, if none is in flight."""
        if self._is_receiving and not self._pending:
            self.end()

    def _end_by(self, error: Exception) -> None:
        """Log an error and end the connection, since no later request can be answered in order."""
        self._log(error)
        self.end()

    def _log(self, error: Exception) -> None:
        counters = self.shared.broker.counters
        if isinstance(error, ProtocolError | Disconnect):
            counters.aborted("protocol" if isinstance(error, ProtocolError) else "refused")
            self.shared.complaints.log("%(peer)s: connection closed: %(error)s", self._fields(error))
        elif isinstance(error, OSError):
            self._is_lost = True
            logger.debug("%(peer)s: connection lost: %(error)s", self._fields(error))
        else:
            counters.aborted("internal")
            fields = self._fields(error)
            logger.error("%(peer)s: connection closed by an error in korvet", fields, exc_info=error)

    def _fields(self, error: Exception | None = None) -> dict[str, object]:
        """Return the fields of a log line about this connection and its current request."""
        current = self._current or next(iter(self._pending), None)
        return {
            "peer": self.peer,
            "listener": self.listener_name,
            "client_id": self._client_id,
            "software": None if self.software is None else "/".join(self.software),
            "principal": None if self._principal == ANONYMOUS else self._principal,
            "api": None if current is None else current.request.api.name,
            "error": error,
        }

    def _release(self, exchange: Exchange, sent: int = -1) -> None:
        """Release what a request holds once `sent` bytes are its response, or if it will have none."""
        shared, size = self.shared, exchange.request.frame_size
        self._unanswered_bytes -= size
        shared.produces -= exchange.is_produce
        if shared.ended_last is not None and not shared.produces:
            shared.ended_last.set()
        shared.memory.budget.give_back(size, exchange.reservation)
        context = exchange.context
        if context.decisions is not None:
            log_decisions(context)  # it was not answered
        if context.answer_bytes:
            shared.broker.answers.change(-context.answer_bytes)
        if context.objects is not None:
            context.release_objects()
        if context.ended is not None:
            context.ended(sent)

    def _close(self) -> None:
        if unanswered := self.progress.taken - self.progress.answered:
            level = logging.DEBUG if self._is_lost else logging.INFO
            fields = {"unanswered": unanswered, **self._fields()}
            logger.log(level, "%(peer)s: %(unanswered)d requests unanswered", fields)
        self._is_ended = True
        for exchange in self._pending if self._current is None else (*self._pending, self._current):
            if exchange.pending is not None:
                exchange.pending.abandon()
            if exchange.rest is not None:
                exchange.rest.close()
            self._release(exchange)
        if self._objects is not None:
            self._objects.end()
        for call in self._at_disconnect.values():
            call()
        self.receiver.close()
        self.transport.close()
        self.closed(self)
