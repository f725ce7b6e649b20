"""Assemble a server: listen, open the storage, join the cluster, and make the broker.

`korvet serve` calls `run`, which serves until a signal ends it. Then it drains. Cancelling `run` drains as well.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import trio

import korvet
from korvet.broker.broker import MakeGroups, now_in_ms, open_broker, registration_of
from korvet.broker.counters import Counters
from korvet.broker.storage_defaults import storage_defaults
from korvet.cluster.membership import Membership
from korvet.cluster.registered import BrokerProcess, registered
from korvet.concurrency.background import background_nursery
from korvet.config import ASSIGNED, Config, Listener
from korvet.groups.coordinator import GroupCoordinator
from korvet.handlers import APIS
from korvet.protocol.connection import Api
from korvet.server.listeners import BoundListener, advertised_addresses, open_listeners
from korvet.server.malloc import keep_what_is_free
from korvet.server.reloading import ReadConfig, report_changes
from korvet.server.server import Server
from korvet.server.signals import ended_by_signals
from korvet.server.start_lines import check_advertised
from korvet.storage.interface import OffsetMapping, Storage, StorageUsageError
from korvet.storage.open import StorageOptions, check_url, open_storage
from korvet.tiered.remote import RemoteStore, open_remote_store

if TYPE_CHECKING:
    from korvet.tracing.provider import Tracing

# Thresholds of the garbage collector: new container objects before generation 0 is collected, then collections of
# each generation before the next older one is collected.
COLLECT_AFTER = (20_000, 20, 50)


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
