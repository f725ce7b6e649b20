"""Checks of Redis: version, persistence, memory, clock, rights of the ACL user, keyspace."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import cast

import trio
from attrs import evolve

from korvet.config import Config
from korvet.doctor.findings import Finding, error, ok, warning
from korvet.doctor.leftovers import leftover_findings
from korvet.doctor.replication import KEY, replication_findings
from korvet.storage.interface import StorageUsageError
from korvet.storage.redis.client.address import RedisAddress, host_and_port, parse_address
from korvet.storage.redis.client.connection import RedisConnection, open_connection
from korvet.storage.redis.client.errors import (
    AuthenticationError,
    ExecAbortError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from korvet.storage.redis.client.link import LinkEnded, explain
from korvet.storage.redis.client.nodes import ClusterNodes, open_nodes
from korvet.storage.redis.client.replies import Command
from korvet.storage.redis.client.sentinel import open_link
from korvet.storage.redis.client.topology import SLOTS
from korvet.storage.redis.failover.guard import eviction, failing_file, info_fields, is_volatile
from korvet.storage.redis.keys import FORMAT, Keyspace
from korvet.storage.redis.opening import NO_DURABILITY, SNAPSHOTS, UNKNOWN_DURABILITY, meet_server

# Timestamps of records and, under offset.mapping=timestamp, offsets come from the clock of Redis.
CLOCK_LIMIT_S = 1.0
# The right that the refusal of a command names.
LACKS = re.compile(r"'([\w|-]+)' command")
UNREACHABLE = (OSError, trio.BrokenResourceError, RedisError, LinkEnded)
REMEDY = "ACL SETUSER with the rights in docs/storage.md"
UNKNOWN = "unknown, because the user has no right to INFO"
INFO: Sequence[Command] = (
    (b"INFO", b"memory"),
    (b"INFO", b"persistence"),
    (b"INFO", b"replication"),
)


async def redis_findings(config: Config) -> AsyncIterator[Finding]:
    """Yield the findings about the server of a storage URL."""
    async for found in server_findings(parse_address(config.storage), config):
        yield found


async def server_findings(
    address: RedisAddress, config: Config, durability: str | None = None
) -> AsyncIterator[Finding]:
    """Yield the findings about a server. `durability` is known if its settings do not say all."""
    if address.nodes:
        for found in await cluster_findings(address, config):
            yield found
        return
    try:
        link = await open_link(address)
        await link.transport.aclose()
    except UNREACHABLE as refusal:
        yield unreachable(address, refusal)
        return
    async with open_connection(address, name="doctor", announce=False) as connection:
        for found in await examined(connection, config, durability):
            yield found
        yield await keyspace(connection)
        for found in (*await leftover_findings(connection), *await rights(connection, config)):
            yield found


def unreachable(address: RedisAddress, reason: BaseException) -> Finding:
    return error("redis", f"{address.description}: {explain(reason)}", remedy_of(reason))


def remedy_of(refusal: BaseException) -> str:
    """Return what the operator can do about a server that does not answer, or refuses."""
    text = explain(refusal)
    if isinstance(refusal, NoPermissionError) or "NOPERM" in text:
        right = LACKS.search(text)
        return f"ACL SETUSER … +{right[1].lower()}, on replicas as well; {REMEDY}" if right else REMEDY
    if isinstance(refusal, AuthenticationError):
        return "correct user and password in --storage"
    if "CLUSTERDOWN" in text:
        return "redis-cli --cluster check HOST:PORT names the slots without a primary; start their servers"
    if "certificate" in text.lower():
        return (
            "?ssl_ca_certs=FILE in --storage, with the authority that has signed the certificate; it must be valid for"
            " the host's name, unless ssl_check_hostname=false (docs/storage.md)"
        )
    if isinstance(refusal, ResponseError):
        return "see the log of Redis"
    return "start it, or correct the address in --storage"


async def cluster_findings(address: RedisAddress, config: Config) -> list[Finding]:
    """Return the findings about each primary of a Redis Cluster, and about the data in it."""
    try:
        # A broker waits for the cluster; an operator needs an answer.
        with trio.fail_after(address.connect_limit_s):
            async with open_nodes(address) as nodes:
                await nodes.wait_all_connected()
                found = [coverage(nodes)]
                for server in list(nodes.servers()):
                    node = server.connection.address
                    for each in await examined(server.connection, config, in_cluster=True):
                        reason = f"{host_and_port(node.host, node.port)}: {each.reason}"
                        found.append(evolve(each, reason=reason))
                found.append(await keyspace(nodes.server_of(Keyspace("korvet").format).connection))
                return found + await rights(nodes.server_of(KEY).connection, config, in_cluster=True)
    except trio.TooSlowError:
        return [
            unreachable(address, LinkEnded(f"not all primaries answer within {address.connect_limit_s:g} s"))
        ]
    except UNREACHABLE as refusal:
        return [unreachable(address, refusal)]


def coverage(nodes: ClusterNodes) -> Finding:
    """Judge whether every slot has a primary."""
    missing = nodes.unassigned()
    found = f"{len(nodes.servers())} primaries"
    if missing:
        return error(
            "cluster", f"{found}, but {missing} of {SLOTS} slots have none", "redis-cli --cluster fix"
        )
    return ok("cluster", f"{found} have all slots")


async def examined(
    connection: RedisConnection, config: Config, durability: str | None = None, *, in_cluster: bool = False
) -> list[Finding]:
    """Return the findings about a server that accepts connections."""
    try:
        server = await meet_server(connection)
    except StorageUsageError as refusal:
        return [error("redis", str(refusal), "Redis 6.2 or newer, or Valkey")]
    info = info_fields(await connection.pipeline(INFO, repeatable=True))
    return [
        ok("redis", f"{server.name} at {connection.address.description}"),
        persistence(durability or server.durability, info),
        memory(info, allowed=config.redis_allow_eviction),
        *await replication_findings(connection, info, config, in_cluster=in_cluster),
        await clock(connection),
    ]


def persistence(durability: str, info: Mapping[bytes, bytes]) -> Finding:
    """Judge what of the acknowledged records survives the end of Redis."""
    if failing := failing_file(info):
        return error("persistence", failing, "make room on its disk")
    if durability in (NO_DURABILITY, SNAPSHOTS):
        remedy = "CONFIG SET appendonly yes, and CONFIG REWRITE; appendfsync=always survives power failures"
        return warning("persistence", durability, remedy)
    if durability == UNKNOWN_DURABILITY:
        return warning("persistence", durability, "ACL SETUSER … +config|get")
    if delayed := int(info.get(b"aof_delayed_fsync", b"0")):
        return warning(
            "persistence",
            f"{durability}; its disk has been slow {delayed:,} times: writes were postponed, and acknowledged",
            "appendfsync no or always, or acks.all.fsync=true: then a crash of Redis loses nothing",
        )
    return ok("persistence", durability)


def memory(info: Mapping[bytes, bytes], *, allowed: bool) -> Finding:
    """Judge `maxmemory` and its policy."""
    if b"used_memory" not in info:
        return warning("memory", UNKNOWN, "ACL SETUSER … +info")
    if danger := eviction(info):
        remedy = "CONFIG SET maxmemory-policy noeviction; korvet serve refuses this server"
        if allowed:
            return warning("memory", f"{danger}, which redis.allow.eviction accepts", remedy)
        return error("memory", danger, remedy)
    limit, used = int(info.get(b"maxmemory", b"0")), int(info[b"used_memory"])
    if limit == 0:
        return ok("memory", f"{used:,} bytes used, maxmemory is not set")
    full = f"{used:,} of maxmemory {limit:,} bytes used"
    if used > 0.9 * limit:
        return warning(
            "memory", f"{full}; when it is full, produces fail", "log.retention.bytes, or more memory"
        )
    policy = "only keys with an expiry are evicted" if is_volatile(info) else "nothing is evicted"
    return ok("memory", f"{full}, {policy}")


async def clock(connection: RedisConnection) -> Finding:
    """Compare the clocks of Redis and of this machine."""
    before = time.time()
    (answer,) = await connection.pipeline([(b"TIME",)], repeatable=True)
    if isinstance(answer, Exception):
        return warning("clock", f"the server refuses TIME: {answer}", remedy_of(answer))
    seconds, microseconds = cast(list[bytes], answer)
    difference = int(seconds) + int(microseconds) / 1e6 - (before + time.time()) / 2
    found = f"Redis differs by {round(difference * 1000):,} ms"
    if abs(difference) > CLOCK_LIMIT_S:
        return warning(
            "clock", found, "synchronise both machines (NTP): retention and offsets after time use both"
        )
    return ok("clock", found)


async def keyspace(connection: RedisConnection) -> Finding:
    """Compare the format of the stored data with the one that this korvet writes."""
    (stored,) = await connection.pipeline([(b"GET", Keyspace("korvet").format)], repeatable=True)
    if isinstance(stored, Exception):
        return error("keyspace", f"the server refuses GET: {stored}", remedy_of(stored))
    if stored is None:
        return ok("keyspace", "there is no data of korvet yet")
    found = f"format {cast(bytes, stored).decode(errors='replace')}"
    if stored != FORMAT:
        return error(
            "keyspace",
            found,
            f"this korvet understands {FORMAT.decode()}; use another database or a newer korvet",
        )
    return ok("keyspace", found)


# --- The rights of the user -----------------------------------------------------------------------------------

PROBE = b"return 1"
PROBE_SHA = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
# A command for each right that docs/storage.md names. KEY holds a string, so that commands for other types change
# nothing: Redis checks the right first.
REQUIRED: Mapping[str, Command] = {
    "client|id": (b"CLIENT", b"ID"),
    "client|unblock": (b"CLIENT", b"UNBLOCK", 0),
    "client|kill": (b"CLIENT", b"KILL", b"ID", 0),
    "info": (b"INFO", b"server"),
    "script|load": (b"SCRIPT", b"LOAD", PROBE),
    "evalsha": (b"EVALSHA", PROBE_SHA, 0),
    "exec": (b"EXEC",),  # without MULTI it is an error, too, but another one
    "time": (b"TIME",),
    "get": (b"GET", b"{korvet:$doctor}"),
    "exists": (b"EXISTS", KEY),
    "hget": (b"HGET", KEY, b"f"),
    "hgetall": (b"HGETALL", KEY),
    "hmget": (b"HMGET", KEY, b"f"),
    "hset": (b"HSET", KEY, b"f", b"v"),
    "hdel": (b"HDEL", KEY, b"f"),
    "hincrby": (b"HINCRBY", KEY, b"f", 1),
    "hscan": (b"HSCAN", KEY, 0),
    "sadd": (b"SADD", KEY, b"m"),
    "smembers": (b"SMEMBERS", KEY),
    "srem": (b"SREM", KEY, b"m"),
    "xadd": (b"XADD", KEY, b"*", b"f", b"v"),
    "xdel": (b"XDEL", KEY, b"0-1"),
    "xlen": (b"XLEN", KEY),
    "xrange": (b"XRANGE", KEY, b"-", b"+"),
    "xrevrange": (b"XREVRANGE", KEY, b"+", b"-"),
    "xread": (b"XREAD", b"STREAMS", KEY, 0),
    "xtrim": (b"XTRIM", KEY, b"MAXLEN", 1),
    "xack": (b"XACK", KEY, b"g", b"0-1"),
    "xpending": (b"XPENDING", KEY, b"g"),
    "xgroup|create": (b"XGROUP", b"CREATE", KEY, b"g", 0),
    "xgroup|setid": (b"XGROUP", b"SETID", KEY, b"g", 0),
    "xgroup|destroy": (b"XGROUP", b"DESTROY", KEY, b"g"),
    "xinfo|groups": (b"XINFO", b"GROUPS", KEY),
    "xinfo|stream": (b"XINFO", b"STREAM", KEY),
    "rename": (b"RENAME", KEY, KEY),
    "xsetid": (b"XSETID", KEY, b"1-1"),
    "xclaim": (b"XCLAIM", KEY, b"g", b"c", 0, b"0-1"),
    "xgroup|createconsumer": (b"XGROUP", b"CREATECONSUMER", KEY, b"g", b"c"),
    "xinfo|consumers": (b"XINFO", b"CONSUMERS", KEY, b"g"),
    "xreadgroup": (b"XREADGROUP", b"GROUP", b"g", b"c", b"STREAMS", KEY, b">"),
    "xgroup|delconsumer": (b"XGROUP", b"DELCONSUMER", KEY, b"g", b"c"),
    "unlink": (b"UNLINK", KEY),
    "multi": (b"MULTI",),  # the last command on the connection
}
# In a Redis Cluster.
REQUIRED_IN_CLUSTER: Mapping[str, Command] = {
    "cluster|slots": (b"CLUSTER", b"SLOTS"),
    "cluster|info": (b"CLUSTER", b"INFO"),
    "asking": (b"ASKING",),
}
OPTIONAL: Mapping[str, tuple[Command, str]] = {
    "ping": ((b"PING",), "a server that is still loading is noticed a little later"),
    "client|setname": ((b"CLIENT", b"SETNAME", b"korvet:doctor"), "connections have no name in CLIENT LIST"),
    "config|get": ((b"CONFIG", b"GET", b"save"), "the start line cannot say what Redis keeps on disk"),
    "wait": ((b"WAIT", 0, 1), "min.insync.replicas above 1 is refused"),
}


async def rights(connection: RedisConnection, config: Config, *, in_cluster: bool = False) -> list[Finding]:
    """Try each command that the broker uses, on a key that is removed afterwards."""
    (stored,) = await connection.pipeline([(b"SET", KEY, b"")], repeatable=True)
    if isinstance(stored, NoPermissionError):
        return [error("rights", f"the user may not SET {KEY.decode()}", REMEDY)]
    if isinstance(stored, RedisError):
        return [error("rights", f"SET failed: {stored}", remedy_of(stored))]
    found = []
    for right in await refused(connection, {name: command for name, (command, _) in OPTIONAL.items()}):
        essential = right == "wait" and config.min_insync_replicas > 1
        judge = error if essential else warning
        found.append(
            judge("rights", f"the user lacks +{right}: {OPTIONAL[right][1]}", f"ACL SETUSER … +{right}")
        )
    required = {**(REQUIRED_IN_CLUSTER if in_cluster else {}), **REQUIRED}
    if missing := await refused(connection, required):
        found.append(error("rights", f"the user lacks +{' +'.join(missing)}", REMEDY))
    return found or [ok("rights", f"the user may do all that korvet needs ({len(required) + 1} rights)")]


async def refused(connection: RedisConnection, commands: Mapping[str, Command]) -> list[str]:
    """Return the rights whose commands Redis refuses."""
    replies = await connection.pipeline(list(commands.values()), repeatable=True)
    refusals = (NoPermissionError, ExecAbortError)  # the latter: of EXEC
    return [right for right, reply in zip(commands, replies, strict=True) if isinstance(reply, refusals)]
