"""Checks of replicas and Sentinels: what a failover finds, before it happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import trio
from attrs import evolve, frozen

from korvet.config import Config
from korvet.doctor.findings import Finding, error, ok, warning
from korvet.storage.redis.client.address import RedisAddress, host_and_port
from korvet.storage.redis.client.connection import RedisConnection
from korvet.storage.redis.client.errors import AuthenticationError, RedisError
from korvet.storage.redis.client.link import LinkEnded, explain, open_link_to
from korvet.storage.redis.client.replies import Command, Reply, as_map
from korvet.storage.redis.client.sentinel import SENTINEL_LIMIT_S, sentinel_at
from korvet.storage.redis.client.sentinel_panel import SentinelPanel
from korvet.storage.redis.failover.guard import eviction, info_fields
from korvet.storage.redis.failover.quorum import questions, view_in

UNREACHABLE = (OSError, trio.BrokenResourceError, RedisError, LinkEnded, trio.TooSlowError)
KEY = b"korvet:$doctor"
CONFIRM_LIMIT_MS = 1000
# Below this a Sentinel takes a pause of a busy machine for the end of a server, and fails over again and again.
SHORTEST_DOWN_AFTER_MS = 1500

Info = Mapping[bytes, bytes]


async def replication_findings(
    connection: RedisConnection, info: Info, config: Config, *, in_cluster: bool = False
) -> list[Finding]:
    """Return the findings about the replicas of a primary, and about its Sentinels."""
    required = config.min_insync_replicas
    fails_over = in_cluster or connection.address.sentinels is not None
    found = [replicas(info, required, fails_over=fails_over)]
    addresses = replica_addresses(connection.address, info)
    if addresses:
        found += await confirmations(connection, len(addresses), required)
        seen = [await look_at(each) for each in addresses]
        found += [finding for each in seen for finding in each.findings(info)]
        if fails_over and seen and all(each.priority == b"0" for each in seen):
            found.append(
                error(
                    "replicas",
                    "no replica may be promoted: each has the priority 0",
                    "CONFIG SET replica-priority 100 on each that may become the primary",
                )
            )
    return [*found, *await sentinels(connection)]


def replicas(info: Info, min_insync: int, *, fails_over: bool = False) -> Finding:
    """Compare the connected replicas with `min.insync.replicas`; with 1, a failover may lose records."""
    if b"role" not in info:
        return warning("replicas", "unknown, because the user has no right to INFO", "ACL SETUSER … +info")
    if info[b"role"] != b"master":
        return error(
            "replicas",
            "the server is a replica, which accepts no writes",
            "the primary's address in --storage",
        )
    connected = int(info.get(b"connected_slaves", b"0"))
    found = f"{connected} connected, min.insync.replicas={min_insync}"
    if connected < min_insync - 1:
        return error(
            "replicas", found, f"start {min_insync - 1 - connected} more, or lower min.insync.replicas"
        )
    if fails_over and connected and min_insync == 1:
        return warning(
            "replicas",
            f"{found}: a failover may promote a replica without the last acknowledged records",
            "min.insync.replicas=2; then acks=all waits until no failover can lose a record",
        )
    return ok("replicas", found)


async def confirmations(connection: RedisConnection, connected: int, required: int) -> list[Finding]:
    """Let the replicas confirm a write; one that hangs is still connected."""
    written, confirmed, _ = await connection.pipeline(
        [(b"SET", KEY, b""), (b"WAIT", connected, CONFIRM_LIMIT_MS), (b"UNLINK", KEY)], repeatable=True
    )
    if isinstance(written, Exception) or isinstance(confirmed, Exception):
        return []  # the check of the rights reports it
    count = cast(int, confirmed)
    if count == connected:
        return []
    found = f"{count} of {connected} have confirmed a write within {CONFIRM_LIMIT_MS} ms"
    remedy = "look for those that hang: INFO replication on the primary shows their lag"
    if count < required - 1:
        return [error("replicas", f"{found}, min.insync.replicas={required}: acks=all waits", remedy)]
    return [warning("replicas", found, remedy)]


@frozen
class Replica:
    """The INFO of one replica, or the reason for having none."""

    name: str
    info: Info
    refusal: BaseException | None = None

    @property
    def priority(self) -> bytes:
        return self.info.get(b"slave_priority", b"")

    def findings(self, primary: Info) -> list[Finding]:
        """Return what a failover to this replica would change."""
        if isinstance(self.refusal, AuthenticationError):
            remedy = "ACL SETUSER on the replica as well: replicas do not receive the primary's users"
            return [error("replicas", f"the user cannot log in at {self.name}: {self.refusal}", remedy)]
        if self.refusal is not None:
            remedy = "look at it; it is not reachable from this machine, as it must be after a failover"
            return [warning("replicas", f"{self.name}: {explain(self.refusal)}", remedy)]
        found = []
        if danger := eviction(self.info):
            remedy = "CONFIG SET maxmemory-policy noeviction on it; after a failover produces are refused"
            found.append(error("replicas", f"{self.name}: {danger}", remedy))
        if primary.get(b"aof_enabled") == b"1" and self.info.get(b"aof_enabled") == b"0":
            remedy = "CONFIG SET appendonly yes on it, and CONFIG REWRITE"
            found.append(
                warning("replicas", f"{self.name} has no append-only file, which the primary has", remedy)
            )
        return found


def replica_addresses(primary: RedisAddress, info: Info) -> list[RedisAddress]:
    """Return the addresses of the replicas that are connected to a primary."""
    found = []
    for index in range(int(info.get(b"connected_slaves", b"0"))):
        fields = dict(
            part.split(b"=", 1) for part in info.get(b"slave%d" % index, b"").split(b",") if b"=" in part
        )
        if {b"ip", b"port"} <= fields.keys():
            host, port = fields[b"ip"].decode(), int(fields[b"port"])
            found.append(evolve(primary, host=host, port=port, path="", sentinels=None, nodes=()))
    return found


async def look_at(address: RedisAddress) -> Replica:
    """Ask a replica about itself."""
    name = f"the replica {host_and_port(address.host, address.port)}"
    sections: list[Command] = [(b"INFO", each) for each in (b"memory", b"persistence", b"replication")]
    try:
        with trio.fail_after(address.connect_limit_s):
            link = await open_link_to(address)
            try:
                return Replica(name, info_fields(await link.ask(sections)))
            finally:
                await link.transport.aclose()
    except UNREACHABLE as refusal:
        return Replica(name, {}, refusal)


async def sentinels(connection: RedisConnection) -> list[Finding]:
    """Judge how many Sentinels answer, and whether they can fail over; without Sentinels, nothing."""
    if connection.address.sentinels is None:
        return []
    asked = questions(connection.address, connection.primary)
    async with trio.open_nursery() as nursery:
        panel = SentinelPanel(connection.address, nursery)
        answers = await panel.ask(asked)
        nursery.cancel_scope.cancel()
    views = [view for answer in answers if (view := view_in(answer)) is not None]
    known = max([panel.number, *(view.sentinels for view in views)])
    found = f"{len(views)} of {known} answer"
    judged = ok("sentinels", found)
    if len(views) != known:
        remedy = (
            "start them, name all of them in --storage, and let their user send SENTINEL; with half of them or fewer,"
            " acks=all waits while a replica is missing"
        )
        judged = warning("sentinels", found, remedy)
    return [judged, *down_after(answers), *await quorum(connection.address)]


def down_after(answers: list[list[Reply]]) -> list[Finding]:
    """Judge the time after which a Sentinel considers a silent primary down."""
    times = [int(cast(bytes, as_map(answer[0]).get(b"down-after-milliseconds", b"0"))) for answer in answers]
    shortest = min((each for each in times if each), default=SHORTEST_DOWN_AFTER_MS)
    if shortest >= SHORTEST_DOWN_AFTER_MS:
        return []
    return [
        warning(
            "sentinels",
            f"down-after-milliseconds is {shortest}: a pause of a busy machine is a failover",
            f"SENTINEL SET NAME down-after-milliseconds {SHORTEST_DOWN_AFTER_MS} or more, on each Sentinel",
        )
    ]


async def quorum(address: RedisAddress) -> list[Finding]:
    """Let each Sentinel check that enough of them are usable to fail over."""
    if address.sentinels is None:
        return []
    for host, port in address.sentinels.hosts:
        try:
            with trio.fail_after(SENTINEL_LIMIT_S):
                link = await open_link_to(sentinel_at(address, host, port))
                try:
                    (reply,) = await link.ask([(b"SENTINEL", b"CKQUORUM", address.sentinels.name)])
                finally:
                    await link.transport.aclose()
        except UNREACHABLE:
            continue
        if isinstance(reply, Exception) and "NOQUORUM" in str(reply):
            remedy = "start the other Sentinels, or lower the quorum (SENTINEL SET NAME quorum N)"
            return [error("sentinels", f"they cannot fail over: {reply}", remedy)]
    return []
