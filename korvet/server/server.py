"""The broker as a server: accept connections, serve them, and drain them at the end.

`korvet serve` calls `run`, which listens, opens the storage, and serves until a signal ends it. Then it stops
accepting, immediately ends connections that wait for a request, and answers parked fetches with the records available.
Other requests that were read may be answered for at most `shutdown.deadline.ms`. A second signal ends the broker
immediately. Cancelling `run` drains as well.
"""

from __future__ import annotations

import errno
import gc
import importlib.util
import logging
import select
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Self

import trio
from attrs import define, field

import korvet
from korvet.broker.broker import Broker, MakeGroups, now_in_ms, open_broker, registration_of
from korvet.broker.counters import Counters
from korvet.broker.limits import ByteBudget, share_of
from korvet.broker.storage_defaults import storage_defaults
from korvet.cluster.membership import Membership
from korvet.cluster.registered import BrokerProcess, registered
from korvet.concurrency.background import background_nursery
from korvet.concurrency.decoded_budget import DECODED
from korvet.concurrency.tasks import supervise
from korvet.config import ASSIGNED, Config, Listener
from korvet.groups.coordinator import GroupCoordinator
from korvet.handlers import APIS
from korvet.logs import LogLimit
from korvet.protocol.connection import Api
from korvet.server.admission import Admission
from korvet.server.authentication import Authentication, authentication
from korvet.server.connection import ServedConnection, Shared
from korvet.server.keystores import ListenerTls, listeners_tls, refresh
from korvet.server.listeners import (
    BoundListener,
    advertised_addresses,
    is_loopback,
    open_listeners,
    peer_name,
)
from korvet.server.malloc import Heap, keep_what_is_free
from korvet.server.patience import Patience
from korvet.server.receiving import RequestMemory
from korvet.server.reloading import ReadConfig, report_changes
from korvet.server.signals import ended_by_signals
from korvet.server.tls import TlsTransport
from korvet.server.transport import PlainTransport, Transport
from korvet.storage.interface import OffsetMapping, Storage, StorageUsageError
from korvet.storage.open import StorageOptions, check_url, open_storage
from korvet.tiered.remote import RemoteStore, open_remote_store

if TYPE_CHECKING:
    from korvet.tracing.provider import Tracing

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
# Thresholds of the garbage collector: new container objects before generation 0 is collected, then collections of
# each generation before the next older one is collected.
COLLECT_AFTER = (20_000, 20, 50)
# Limit of connections that are closed after a delay. Further ones are closed immediately.
MOST_REFUSED = 1000
SWEEP_INTERVAL_S = 1.0
# Limit of the time for which a broker that leaves waits for its appends.
APPENDS_LIMIT_S = 1.0
RESOLVE_LIMIT_S = 5.0
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
        with self._scope:
            # Connections run in the outer nursery: accepting ends first, and requests in flight may still finish.
            async with trio.open_nursery() as connections:
                try:
                    await self._accept_until_stopped(connections, task_status)
                finally:
                    self._drain()
        self.broker.membership.check_not_replaced()

    async def _accept_until_stopped(
        self, connections: trio.Nursery, task_status: trio.TaskStatus[Self]
    ) -> None:
        shared = Shared(self.broker, self.apis, RequestMemory(self._budget))
        try:
            async with trio.open_nursery() as accepting:
                await accepting.start(supervise, "sweep", self._sweep)
                await accepting.start(supervise, "groups", self.broker.groups.run)
                await accepting.start(supervise, "expired positions", self.broker.groups.expire_positions)
                await accepting.start(supervise, "retention", self.broker.retention.run)
                await accepting.start(supervise, "compaction", self.broker.compaction.run)
                await accepting.start(supervise, "archived", self.broker.log.run)
                if (authorization := self.broker.authorization) is not None:
                    await accepting.start(supervise, "ACLs", authorization.acls.run)
                await accepting.start(supervise, "quotas", self.broker.quotas.run)
                await accepting.start(supervise, "settings", self.broker.dynamic.run)
                await accepting.start(supervise, "imports", APIS.load)
                if self._authentication.jwks is not None:
                    await accepting.start(supervise, "keys of tokens", self._authentication.jwks.run)
                if (passwords := self._authentication.passwords) is not None:
                    await accepting.start(supervise, "passwords", passwords.run)
                if self._tls:
                    await accepting.start(supervise, "certificates", partial(refresh, self._tls.values()))
                await accepting.start(supervise, "reload", self._reload)
                accepting.start_soon(shared.busy_poll.keep)
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
        transport: Transport = PlainTransport(sock) if tls is None else TlsTransport(sock, tls)
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


async def run(
    config: Config,
    *,
    counters: Counters | None = None,
    apis: Mapping[int, Api] = APIS,
    reread: ReadConfig | None = None,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen, open the storage, and serve until a signal ends the broker. Report the server once it serves.

    A reload calls `reread` for the present settings, and logs those that only a restart applies.

    Raises ListenError and StorageUsageError, whose messages are one line for the operator, and SystemExit if a signal
    arrives before the broker serves.
    """
    async with ended_by_signals() as ending:
        check_url(config.storage)  # it is a mistake in the settings, which another port does not correct
        # Listen first: a port in use is an immediate error, while opening storage may take long. Clients that connect
        # in the meantime wait in the backlog.
        listeners = open_listeners(config)
        async with (
            opened(config, listeners, counters=counters, apis=apis) as server,
            trio.open_nursery() as nursery,
        ):

            async def stop() -> None:
                server.stop()

            async def reload() -> None:
                server.reload()
                report_changes(config, reread)

            ending.tell, ending.reload = stop, reload
            nursery.start_soon(check_advertised, listeners)
            await server.serve(task_status=task_status)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_server(
    config: Config | None = None, *, storage: Storage | None = None, apis: Mapping[int, Api] = APIS
) -> AsyncIterator[Server]:
    """Run a broker inside another Trio program. It serves until the block ends, and then drains.

    Without `config` the broker has the default settings and listens on a free loopback port. Port 0 in `listeners`
    means a free port as well. A `storage` replaces the one that `config` names, and stays open after the block. `apis`
    is the table of APIs to serve. Several brokers may run concurrently, in any thread, and install no signal handlers.

    Raises ListenError and StorageUsageError. An error in the broker itself cancels the block.
    """
    config = config or Config(listeners=(Listener("PLAINTEXT", "localhost", 0),))
    ended = trio.Event()

    async def serve(server: Server, *, task_status: trio.TaskStatus[Server]) -> None:
        try:
            await server.serve(task_status=task_status)
        finally:
            ended.set()

    listeners = open_listeners(config)
    async with (
        opened(config, listeners, storage=storage, apis=apis) as server,
        background_nursery() as nursery,
    ):
        await nursery.start(serve, server)
        yield server
        server.stop()
        await ended.wait()


def keep_what_is_there() -> None:
    """Configure the garbage collector and malloc for a broker.

    Exclude the objects that exist now from garbage collection, collect the others less often, and keep freed memory.
    """
    # A large request creates thousands of objects. With the default thresholds, searching all other objects for cycles
    # took a third of the time of such a request.
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    keep_what_is_free()


@asynccontextmanager
async def opened(
    config: Config,
    listeners: Sequence[BoundListener],
    *,
    storage: Storage | None = None,
    counters: Counters | None = None,
    make_groups: MakeGroups = GroupCoordinator,
    apis: Mapping[int, Api] = APIS,
    process: BrokerProcess | None = None,
) -> AsyncIterator[Server]:
    """Yield a server that is ready to `serve`, and close its listeners at the end of the block.

    Without `storage`, open the storage that the settings name, and close it at the end of the block. `process` is this
    one if the broker has several.

    Raises StorageUsageError, and NodeIdTaken, which is one.
    """
    try:
        source = _storage(config) if storage is None else nullcontext(storage)
        async with (
            source as found,
            _remote_store(config) as remote,
            _membership(found, config, listeners, process or BrokerProcess()) as membership,
            _tracing(config) as tracing,
        ):
            if tracing is not None:
                apis = tracing.apis(apis)
            broker = await open_broker(
                found if tracing is None else tracing.storage(found),
                config,
                membership=membership,
                counters=counters,
                remote=remote,
                make_groups=make_groups,
            )
            yield Server(broker, listeners, apis=apis)
    finally:
        for bound in listeners:
            bound.close()


def _membership(
    storage: Storage, config: Config, listeners: Sequence[BoundListener], process: BrokerProcess
) -> AbstractAsyncContextManager[Membership]:
    """Return the membership in the cluster of all brokers on the storage, as a context manager."""
    own = registration_of(
        config,
        advertised_addresses(listeners),
        now_in_ms(),
        incarnation=process.incarnation,
        version=korvet.__version__,
    )
    if not storage.is_elsewhere:
        return nullcontext(Membership(own))
    return registered(
        storage,
        own,
        node_id=None if config.node_id == ASSIGNED else config.node_id,
        session_s=config.broker_session_timeout_ms / 1000,
        registers=process.registers,
    )


def _storage(config: Config) -> AbstractAsyncContextManager[Storage]:
    """Return the storage that the settings name, as a context manager that opens it."""
    mapping = OffsetMapping(config.default_offset_mapping)
    options = StorageOptions(
        defaults=storage_defaults(config),
        mapping=mapping,
        memory_max_bytes=config.memory_max_bytes,
        embedded_appendfsync=config.embedded_appendfsync,
        embedded_binary=config.embedded_server,
        redis_allow_eviction=config.redis_allow_eviction,
        acks_all_fsync=config.acks_all_fsync,
        reread_url=partial(config.read_again, "storage"),
    )
    return open_storage(config.storage, options)


@asynccontextmanager
async def _remote_store(config: Config) -> AsyncIterator[RemoteStore | None]:
    """Yield the lake of `lake.url`, or None if it is not set. Raises StorageUsageError if deltalake is missing."""
    if config.lake_url is None:
        yield None
        return
    if importlib.util.find_spec("deltalake") is None:
        raise StorageUsageError("lake.url requires: pip install 'korvet[lake]'")
    async with open_remote_store(config.lake_url) as remote:
        yield remote


@asynccontextmanager
async def _tracing(config: Config) -> AsyncIterator[Tracing | None]:
    """Yield the traces of `tracing.exporter`, or None. Raises StorageUsageError if OpenTelemetry is missing."""
    if config.tracing_exporter == "none":
        yield None
        return
    if importlib.util.find_spec("opentelemetry") is None:
        raise StorageUsageError("tracing.exporter requires: pip install 'korvet[otel]'")
    from korvet.tracing.provider import open_tracing  # noqa: PLC0415  only if configured

    async with open_tracing(config.tracing_exporter) as tracing:
        yield tracing


# --- Messages for the operator -------------------------------------------------------------------------------


def start_lines(server: Server) -> list[str]:
    """Return the log lines of a started broker: version, addresses, storage and durability, and then warnings."""
    storage = server.broker.store
    addresses = ", ".join(
        bound.advertised.address if len(server.listeners) == 1 else str(bound.advertised)
        for bound in server.listeners
    )
    first = f"korvet {korvet.__version__}: clients connect to {addresses}; {storage.description}; {storage.durability}"
    if (processes := server.broker.config.processes) > 1:
        first += f"; {processes} processes"
    if others := server.broker.membership.others:
        named = ", ".join(f"{each.node_id} ({each.address})" for each in others)
        first += f"; broker {server.broker.membership.node_id} of a cluster with {named}"
    config = server.broker.config
    return [first, *(warning for bound in server.listeners for warning in _warnings(bound, config))]


def _warnings(bound: BoundListener, config: Config) -> Iterator[str]:
    if bound.is_loopback:
        return
    listener, advertised = bound.listener, bound.advertised
    if risk := _risk(listener, config):
        yield f"warning: listening on {listener.address}, which other machines can reach, {risk}"
    if is_loopback(advertised.host) or advertised.is_wildcard:
        yield (
            f"warning: clients of {listener.address} connect to {advertised.address}, which leads to"
            " the client's own machine; set advertised.listeners"
        )


def _risk(listener: Listener, config: Config) -> str:
    """Return what the listener lacks if other machines can reach it, or ""."""
    if not config.has_sasl(listener) and config.client_auth(listener) != "required":
        return "without authentication: any client may read, write and delete everything"
    if not config.has_tls(listener):
        return "without encryption: passwords of PLAIN, tokens and records can be read on the way"
    return ""


async def check_advertised(listeners: Sequence[BoundListener]) -> None:
    """Log a warning for each advertised host name that this machine cannot resolve."""
    for bound in listeners:
        if bound.is_loopback and is_loopback(bound.advertised.host):
            continue
        with trio.move_on_after(RESOLVE_LIMIT_S):
            try:
                await trio.socket.getaddrinfo(bound.advertised.host, bound.advertised.port)
            except OSError as error:
                logger.warning(
                    "the advertised address is %(address)s, but %(host)r cannot be resolved (%(error)s);"
                    " set advertised.listeners",
                    {
                        "address": bound.advertised.address,
                        "host": bound.advertised.host,
                        "error": error.strerror,
                    },
                )
