"""Open the connections to a server, and check its version, its durability and the format of its keyspace."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import cast

import trio
from attrs import frozen

from korvet.concurrency.background import background_nursery
from korvet.storage.interface import StorageUsageError
from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.caller import RedisCaller, SingleServer
from korvet.storage.redis.client.cluster import Cluster
from korvet.storage.redis.client.connection import (
    NotConnected,
    RedisConnection,
    RedisUnavailable,
    Script,
    open_connection,
)
from korvet.storage.redis.client.errors import NoPermissionError, RedisError
from korvet.storage.redis.client.nodes import open_nodes
from korvet.storage.redis.client.replies import as_map, is_redirection
from korvet.storage.redis.client.server import ServerConnections, connections_beside
from korvet.storage.redis.keys import FORMAT, Keyspace
from korvet.storage.redis.read.watch import last_entry, new_entries

logger = logging.getLogger(__name__)

OLDEST_REDIS = (6, 2)
# Time between attempts to open a Redis Cluster that is down.
AGAIN_S = 0.5

UNKNOWN_DURABILITY = "what Redis keeps on disk is its own setting, which this user may not see"
NO_DURABILITY = "Redis keeps nothing on disk: its end is the end of all data"
SNAPSHOTS = "Redis writes only snapshots: if it stops, records acknowledged after the last one are lost"
FSYNC = {
    b"always": "acknowledged records are on disk (appendfsync always)",
    b"everysec": "a power loss, or a crash of Redis while its disk is slow, can lose acknowledged records of up to "
    "two seconds (appendfsync everysec)",
    b"no": "a power loss can lose acknowledged records of half a minute (appendfsync no)",
}


@frozen
class Server:
    """The server's name and version, and its durability, a phrase each for the start line."""

    name: str
    durability: str
    is_durable: bool = False  # acknowledged writes are on disk


@asynccontextmanager
async def open_caller(address: RedisAddress) -> AsyncIterator[RedisCaller]:
    """Open the connections to a server, or to the nodes of a Redis Cluster, until the block ends.

    Raise StorageUsageError if the server refuses them for a reason that a later attempt would meet again.
    """
    async with AsyncExitStack() as stack:
        try:
            if address.nodes:
                caller: RedisCaller = Cluster(await stack.enter_async_context(open_nodes(address)))
            else:
                connection = await stack.enter_async_context(open_connection(address))
                watching = await stack.enter_async_context(open_connection(address, name="watch"))
                nursery = await stack.enter_async_context(background_nursery())
                server = connections_beside(connection, nursery)
                server.watching.add(watching)
                caller = SingleServer(server)
        except (RedisError, ssl.SSLCertVerificationError) as error:
            raise StorageUsageError(f"Redis at {address.description} refuses: {error}") from error
        yield caller


@contextmanager
def refused(address: RedisAddress) -> Iterator[None]:
    """Convert a RedisError raised in the block into a StorageUsageError."""
    try:
        yield
    except RedisError as error:
        raise StorageUsageError(
            f"Redis at {address.description} refuses what korvet needs: {error}"
        ) from error


async def prepare(
    caller: RedisCaller, keyspace: Keyspace, scripts: Sequence[Script], *, fsync: bool
) -> Server:
    """Check the servers and their keyspace, and load the scripts.

    Wait while a Redis Cluster is down, as a running broker does. Raise StorageUsageError if a server is unsuitable;
    with `fsync`, also one without WAITAOF.
    """
    has_logged = False
    while True:
        try:
            return await prepare_all(caller, keyspace, scripts, fsync=fsync)
        except StorageUsageError as error:
            cause = error.__cause__
            if not isinstance(cause, RedisUnavailable) and (cause is None or not is_redirection(cause)):
                raise
            if not has_logged:
                fields = {"redis": caller.address.description, "error": cause}
                logger.warning("Redis at %(redis)s cannot serve; waiting: %(error)s", fields)
                has_logged = True
        await trio.sleep(AGAIN_S)


async def prepare_all(
    caller: RedisCaller, keyspace: Keyspace, scripts: Sequence[Script], *, fsync: bool
) -> Server:
    """Do one attempt of `prepare`."""
    found: dict[ServerConnections, Server] = {}
    with refused(caller.address):
        while unprepared := [each for each in caller.servers() if each not in found]:
            with suppress(NotConnected):  # the node has left the cluster meanwhile
                found[unprepared[0]] = await prepare_one(
                    unprepared[0].connection, keyspace, scripts, fsync=fsync
                )
        await check_keyspace(caller.server_of(keyspace.format).connection, keyspace)
    first, *others = [found[each] for each in caller.servers() if each in found]
    if not caller.address.nodes:
        return first
    names = " and ".join(sorted({each.name for each in (first, *others)}))
    weakest = next((each for each in others if each.durability == NO_DURABILITY), first)
    return Server(f"{names}, {1 + len(others)} primaries,", weakest.durability)


async def prepare_one(
    connection: RedisConnection, keyspace: Keyspace, scripts: Sequence[Script], *, fsync: bool
) -> Server:
    """Check one server, and load the scripts."""
    server = await meet_server(connection)
    if fsync:
        await require_waitaof(connection, server)
    await connection.load(scripts)
    await check_reading(connection, keyspace)
    return server


async def check_reading(connection: RedisConnection, keyspace: Keyspace) -> None:
    """Raise NoPermissionError if the Redis user may not read streams."""
    for command in (new_entries({keyspace.changes: b"0-0"}), last_entry(keyspace.changes)):
        (reply,) = await connection.pipeline([command], repeatable=True)
        if isinstance(reply, NoPermissionError):
            raise reply


async def meet_server(connection: RedisConnection) -> Server:
    """Return the server's version and durability. Raise StorageUsageError if it is too old."""
    hello = as_map(await connection.execute(b"HELLO", repeatable=True))
    name, version = (cast(bytes, hello[key]).decode() for key in (b"server", b"version"))
    if name == "redis" and tuple(map(int, version.split(".")[:2])) < OLDEST_REDIS:
        raise StorageUsageError(
            f"Redis {version} at {connection.address.description} is too old; korvet needs 6.2 or newer, or Valkey"
        )
    found = await durability(connection)
    return Server(f"{name.capitalize()} {version}", found, is_durable=found == FSYNC[b"always"])


async def require_waitaof(connection: RedisConnection, server: Server) -> None:
    """Raise StorageUsageError if the server cannot wait until records are on disk."""
    try:
        await connection.execute(b"WAITAOF", 1, 0, 1, repeatable=True)
    except RedisError as error:
        raise StorageUsageError(
            "acks.all.fsync=true requires WAITAOF (Redis 7.2 or newer, or Valkey) and appendonly=yes; "
            f"{server.name} at {connection.address.description} answers: {error}"
        ) from error


async def durability(connection: RedisConnection) -> str:
    """Return a phrase for the records that can be lost when Redis ends unexpectedly."""
    commands = [(b"CONFIG", b"GET", name) for name in (b"appendonly", b"appendfsync", b"save")]
    replies = await connection.pipeline(commands, repeatable=True)
    if any(isinstance(reply, Exception) for reply in replies):
        return UNKNOWN_DURABILITY
    settings = {name: value for reply in replies for name, value in as_map(reply).items()}
    if settings.get(b"appendonly") == b"yes":
        return FSYNC.get(cast(bytes, settings.get(b"appendfsync")), UNKNOWN_DURABILITY)
    return SNAPSHOTS if settings.get(b"save") else NO_DURABILITY


async def check_keyspace(connection: RedisConnection, keyspace: Keyspace) -> None:
    """Store the version of the format, or raise StorageUsageError if the stored version is not supported."""
    where = f"the keyspace {keyspace.namespace}: at {connection.address.description}"
    await connection.execute(b"SET", keyspace.format, FORMAT, b"NX", repeatable=True)
    stored = cast(bytes, await connection.execute(b"GET", keyspace.format, repeatable=True))
    if not stored.isdigit() or int(stored) > int(FORMAT):
        raise StorageUsageError(
            f"{where} has format {stored.decode(errors='replace')};"
            f" this korvet understands formats up to {FORMAT.decode()}"
        )
