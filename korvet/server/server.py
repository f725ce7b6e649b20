"""The broker as a server: accept connections, serve them, and drain them at the end.

When `stop` is called, the server stops accepting, immediately ends connections that wait for a request, and answers
parked fetches with the records available. Other requests that were read may be answered for at most
`shutdown.deadline.ms`. A second call ends the broker immediately.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Self

import trio
from attrs import define, field

from korvet.broker.broker import Broker
from korvet.broker.limits import ByteBudget, share_of
from korvet.concurrency.decoded_budget import DECODED
from korvet.concurrency.tasks import supervise
from korvet.config import Listener
from korvet.handlers import APIS, apis_on
from korvet.logs import LogLimit
from korvet.protocol.connection import Api
from korvet.server.admission import Admission
from korvet.server.authentication import Authentication, authentication
from korvet.server.connection import ServedConnection, Shared
from korvet.server.keystores import ListenerTls, listeners_tls, refresh
from korvet.server.listeners import BoundListener, peer_name
from korvet.server.malloc import Heap
from korvet.server.patience import Patience
from korvet.server.readiness import Readiness, open_readiness
from korvet.server.receiving import RequestMemory
from korvet.server.tls import TlsTransport
from korvet.server.transport import PlainTransport, Transport

logger = logging.getLogger(__name__)

# Errors of accept(2) for lack of resources. They pass when other connections close.
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
# Errors of accept(2) that concern only the connection being accepted.
STILLBORN = (
    errno.ECONNABORTED,
    errno.EPERM,
    errno.EPROTO,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOPROTOOPT,
    errno.EOPNOTSUPP,
)
ROOM_PAUSE_S = 0.1
# Limit of connections that are closed after a delay. Further ones are closed immediately.
MOST_REFUSED = 1000
SWEEP_INTERVAL_S = 1.0
# Limit of the time for which a broker that leaves waits for its appends.
APPENDS_LIMIT_S = 1.0
# The events of poll(2) that report a closed peer. Only Linux has POLLRDHUP, which is set even if bytes are unread.
PEER_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


@define(eq=False)
class Server:
    """A broker with its listeners and connections. `serve` may be called once."""

    broker: Broker
    listeners: Sequence[BoundListener]
    sweep_interval_s: float = SWEEP_INTERVAL_S
    apis: Mapping[int, Api] = field(default=APIS, kw_only=True)
    _authentication: Authentication = field(init=False)
    _tls: Mapping[str, ListenerTls] = field(init=False)  # by the name of a listener that has TLS
    _connections: set[ServedConnection] = field(factory=set)
    _admission: Admission = field(init=False)
    _refused: int = 0  # connections that are closed after a delay
    _budget: ByteBudget = field(init=False)
    _overdue: LogLimit = field(factory=lambda: LogLimit(logger, logging.INFO, "closed connections", 60))
    _heap: Heap = field(factory=Heap)
    _stopping: trio.Event = field(factory=trio.Event)
    _leaves: bool = True
    _reload_requested: trio.Event = field(factory=trio.Event)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        config = self.broker.config
        self._authentication = authentication(self.broker)
        self._tls = listeners_tls(config)
        self._admission = Admission(config, self.broker.quotas)
        self.broker.reconfigured.append(self._admission.configure)
        self._budget = ByteBudget(share_of(config.queued_max_request_bytes, config.processes))

    @property
    def bootstrap_servers(self) -> str:
        """The address that clients of the first listener connect to, as `host:port`."""
        return self.listeners[0].advertised.address

    @property
    def budgets(self) -> dict[str, tuple[int, int]]:
        """The bytes in use and the limit of each memory budget; a limit of -1 is unlimited."""
        answers = self.broker.answers
        return {
            "requests": (self._budget.taken, self._budget.limit),
            "responses": (answers.read, answers.limit),
            "decompressed": (DECODED.taken, DECODED.limit),
        }

    @property
    def is_stopping(self) -> bool:
        """True after `stop` was called."""
        return self._stopping.is_set()

    def stop(self, *, leaves: bool = True) -> None:
        """Start to drain. The second call ends all connections immediately.

        The broker leaves the cluster first if `leaves`: if this process is not one of several that go on.
        """
        self._leaves = leaves
        if self._stopping.is_set():
            self._scope.cancel()
            for connection in self._connections:
                connection.end()
        self._stopping.set()

    def reload(self) -> None:
        """Start to read certificates, passwords of PLAIN and keys of tokens again."""
        self._reload_requested.set()

    async def serve(self, *, task_status: trio.TaskStatus[Self] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop` is called, then leave the cluster, close the listeners and drain.

        Raises NodeIdTaken if another broker has taken over this one's node id.
        """
        with self._scope, open_readiness() as readiness:
            # Connections run in the outer nursery: accepting ends first, and requests in flight may still finish.
            async with trio.open_nursery() as connections:
                try:
                    await self._accept_until_stopped(connections, readiness, task_status)
                finally:
                    self._drain()
        self.broker.membership.check_not_replaced()

    async def _accept_until_stopped(
        self, connections: trio.Nursery, readiness: Readiness | None, task_status: trio.TaskStatus[Self]
    ) -> None:
        apis = apis_on(self.broker.store, self.apis)
        shared = Shared(self.broker, apis, RequestMemory(self._budget), readiness)
        try:
            async with trio.open_nursery() as accepting:
                await accepting.start(supervise, "sweep", self._sweep)
                await accepting.start(supervise, "groups", self.broker.groups.run)
                await accepting.start(supervise, "expired offsets", self.broker.groups.expire_offsets)
                await accepting.start(supervise, "share groups", self.broker.share.run)
                if self.broker.store.serves_transactions:
                    await accepting.start(supervise, "transactions", self.broker.transactions.run)
                    await accepting.start(supervise, "hanging transactions", self.broker.hanging.run)
                await accepting.start(supervise, "fetch sessions", self.broker.fetch_sessions.run)
                await accepting.start(supervise, "retention", self.broker.retention.run)
                await accepting.start(supervise, "compaction", self.broker.compaction.run)
                await accepting.start(supervise, "archived", self.broker.log.run)
                if (authorization := self.broker.authorization) is not None:
                    await accepting.start(supervise, "ACLs", authorization.acls.run)
                await accepting.start(supervise, "quotas", self.broker.quotas.run)
                await accepting.start(supervise, "settings", self.broker.dynamic.run)
                await accepting.start(supervise, "settings of groups", self.broker.group_settings.run)
                await accepting.start(supervise, "imports", APIS.load)
                if self._authentication.jwks is not None:
                    await accepting.start(supervise, "keys of tokens", self._authentication.jwks.run)
                if (passwords := self._authentication.passwords) is not None:
                    await accepting.start(supervise, "passwords", passwords.run)
                if self._tls:
                    await accepting.start(supervise, "certificates", partial(refresh, self._tls.values()))
                await accepting.start(supervise, "reload", self._reload)
                accepting.start_soon(shared.busy_poll.keep)
                if readiness is not None:
                    accepting.start_soon(readiness.run)
                accepting.start_soon(self._stop_if_replaced)
                for bound in self.listeners:
                    for sock in bound.sockets:
                        accepting.start_soon(self._accept, sock, bound.listener, shared, connections)
                task_status.started(self)
                await self._stopping.wait()
                if self._leaves:
                    await self._leave(shared)
                accepting.cancel_scope.cancel()
        finally:
            for bound in self.listeners:
                bound.close()

    async def _leave(self, shared: Shared) -> None:
        """Leave the cluster once the appends in flight are answered, or after a time limit.

        Clients that find this broker no longer in Metadata send what is unanswered to another one.
        """
        membership = self.broker.membership
        membership.begin_to_leave()
        if membership.is_leaving:
            with trio.move_on_after(APPENDS_LIMIT_S):
                await shared.no_produces()
        await membership.leave()

    async def _stop_if_replaced(self) -> None:
        """Drain if another broker takes over this one's node id."""
        await self.broker.membership.ended.wait()
        self.stop()

    async def _reload(self) -> None:
        """Reload whenever `reload` was called. Never returns."""
        while True:
            await self._reload_requested.wait()
            self._reload_requested = trio.Event()
            for tls in self._tls.values():
                await tls.refresh()
            await self._authentication.refresh()
            logger.info("certificates, passwords and keys of tokens are up to date")

    def _drain(self) -> None:
        deadline = trio.current_time() + self.broker.config.shutdown_deadline_ms / 1000
        self.broker.drain()
        for connection in self._connections:
            connection.drain(deadline)

    # --- Accepting --------------------------------------------------------------------------------------

    async def _accept(
        self, listening: socket.socket, listener: Listener, shared: Shared, connections: trio.Nursery
    ) -> None:
        """Accept connections until cancelled, and serve each in a task of `connections`.

        Ignore errors that concern one connection. If resources are lacking, retry after a pause. Any other error ends
        the server, since a socket that no longer accepts does not recover.
        """
        while True:
            await self._admission.wait_for_place(listener)
            try:
                sock, address = listening.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listening)
            except OSError as error:
                if error.errno in NO_ROOM:
                    fields = {"error": error.strerror, "listener": listener.name}
                    logger.warning("no connection can be accepted: %(error)s", fields)
                    await trio.sleep(ROOM_PAUSE_S)
                elif error.errno in STILLBORN:
                    await trio.lowlevel.checkpoint()
                else:
                    raise
            else:
                await self._admit(sock, peer_name(address), listener, shared, connections)
                await trio.lowlevel.checkpoint()

    async def _admit(
        self, sock: socket.socket, peer: str, listener: Listener, shared: Shared, connections: trio.Nursery
    ) -> None:
        """Serve a connection once the rate of new ones allows it, or close it because of its address."""
        try:
            await self._admission.wait_for_rate(listener)
            refused_for_s = self._admission.refused_for_s(listener, peer)
        except BaseException:
            sock.close()
            raise
        if refused_for_s is None:
            connection = self._begin(sock, peer, listener, shared)
            connections.start_soon(connection.serve, name=f"connection {peer}")
        elif refused_for_s and self._refused < MOST_REFUSED:
            connections.start_soon(self._close_later, sock, refused_for_s)
        else:
            sock.close()

    async def _close_later(self, sock: socket.socket, delay_s: float) -> None:
        """Close a connection after a delay, or when the broker stops."""
        self._refused += 1
        try:
            with trio.move_on_after(delay_s):
                await self._stopping.wait()
        finally:
            self._refused -= 1
            sock.close()

    def _begin(self, sock: socket.socket, peer: str, listener: Listener, shared: Shared) -> ServedConnection:
        sock.settimeout(0)
        # Responses are sent whole, so Nagle's algorithm would only delay them.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._tls.get(listener.name)
        transport: Transport = (
            PlainTransport(sock, shared.readiness)
            if tls is None
            else TlsTransport(sock, tls, shared.readiness)
        )
        session = self._authentication.session(listener.name, peer)
        connection = ServedConnection(transport, peer, listener.name, shared, self._ended, session)
        self._connections.add(connection)
        self._admission.opened(listener.name, peer)
        self.broker.counters.opened(listener.name, self._admission.open)
        return connection

    def _ended(self, connection: ServedConnection) -> None:
        self._connections.discard(connection)
        self._admission.closed(connection.listener_name, connection.peer)
        self.broker.counters.closed(connection.listener_name, connection.software, self._admission.open)

    # --- Clients that keep us waiting -------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Every second, end overdue connections and waits of disconnected clients, and trim memory."""
        while True:
            await trio.sleep(self.sweep_interval_s)
            self._end_overdue_and_abandoned()
            await self._give_memory_back()

    def _end_overdue_and_abandoned(self) -> None:
        """End connections whose clients are overdue, and parked waits of clients that have disconnected."""
        config, now = self.broker.config, monotonic()
        patience = Patience(
            idle_s=config.connections_max_idle_ms / 1000,
            progress_s=config.request_timeout_ms / 1000,
            min_rate=config.socket_request_min_bytes_per_second,
            is_memory_scarce=self._budget.is_waited_for,
            is_answer_memory_scarce=self.broker.answers.is_waited_for,
        )
        parked: dict[int, trio.CancelScope] = {}
        for connection in list(self._connections):
            if (scope := connection.parked) is not None:
                parked[connection.transport.number] = scope
            elif reason := connection.overdue(now, patience):
                self.broker.counters.aborted("overdue")
                fields = {
                    "peer": connection.peer,
                    "error": reason,
                    "listener": connection.listener_name,
                    "software": connection.software and "/".join(connection.software),
                }
                self._overdue.log("%(peer)s: connection closed: %(error)s", fields)
                connection.end()
        end_waits_of_disconnected(parked)

    async def _give_memory_back(self) -> None:
        """Trim memory if much less is in use than before: by requests, responses, and records in memory."""
        requests, answers, stored = self._budget, self.broker.answers, self.broker.store.held_bytes
        highest = stored + requests.highest + answers.highest + DECODED.highest
        await self._heap.look(highest)
        requests.highest, answers.highest, DECODED.highest = requests.taken, answers.read, DECODED.taken


def end_waits_of_disconnected(parked: Mapping[int, trio.CancelScope]) -> None:
    """Cancel the waits whose clients have disconnected; keys are the file descriptors of their sockets."""
    # No task reads from these sockets in the meantime, so only poll(2) reports the disconnect.
    if not parked:
        return
    poll = select.poll()
    for number in parked:
        poll.register(number, PEER_GONE)
    for number, _ in poll.poll(0):
        parked[number].cancel()
