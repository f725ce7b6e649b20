"""Detect that the server loses acknowledged records: eviction, a failing append-only file.

Redis evicts keys without notice if `maxmemory` is set and its policy covers all keys. korvet's keys have no expiry, so
the `volatile-` policies do not evict them. The broker refuses to start on a server that may evict. If a server is
reconfigured later, the broker refuses produces until the policy is corrected. Without permission for INFO the broker
cannot check the server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from attrs import define

from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import StorageUsageError
from korvet.storage.redis.client.connection import RedisConnection
from korvet.storage.redis.client.errors import NoPermissionError
from korvet.storage.redis.client.replies import Command, Reply

logger = logging.getLogger(__name__)

INFO: tuple[Command, ...] = ((b"INFO", b"memory"), (b"INFO", b"stats"), (b"INFO", b"persistence"))

Info = Mapping[bytes, bytes]


@define(eq=False)
class Guard:
    """Monitor of one server. `refusal` is the error with which produces are refused at present, or None."""

    allows_eviction: bool
    evicted_keys: int = 0
    refusal: KafkaStorageError | None = None
    can_ask: bool = True

    async def begin(self, connection: RedisConnection) -> None:
        """Raise StorageUsageError if the server may evict records and the settings do not allow that."""
        info = self._info(await connection.pipeline(INFO, repeatable=True))
        self.evicted_keys = evicted_keys(info)
        danger = eviction(info)
        if danger is not None and not self.allows_eviction:
            raise StorageUsageError(
                f"Redis at {connection.address.description} would lose acknowledged records: {danger};"
                " set maxmemory-policy to noeviction, or redis.allow.eviction=true if records may vanish"
            )

    @property
    def commands(self) -> Sequence[Command]:
        """The commands whose replies `judge` reads; none without permission for INFO."""
        return INFO if self.can_ask else ()

    def judge(self, replies: Sequence[Reply], where: str) -> None:
        """Refuse or accept produces, and log each change once."""
        info = self._info(replies)
        danger = failing_file(info) or (None if self.allows_eviction else eviction(info))
        if danger is not None and self.refusal is None:
            logger.error(
                "Redis at %(redis)s would lose acknowledged records: %(error)s; produces are refused",
                {"redis": where, "error": danger},
            )
        elif danger is None and self.refusal is not None:
            logger.warning("Redis at %(redis)s is safe again; produces are accepted", {"redis": where})
        self.refusal = None if danger is None else KafkaStorageError(f"Redis: {danger}")

        evicted = evicted_keys(info)
        if evicted > self.evicted_keys and not is_volatile(info):
            fields = {"redis": where, "keys": evicted}
            logger.error("Redis at %(redis)s has evicted %(keys)d keys; records may be among them", fields)
        self.evicted_keys = evicted

    def _info(self, replies: Sequence[Reply]) -> Info:
        """Return all fields of the replies to INFO; none if the Redis user has no permission for INFO."""
        if self.can_ask and any(isinstance(reply, NoPermissionError) for reply in replies):
            self.can_ask = False
            logger.info("without the right to INFO (ACL SETUSER … +info), eviction goes unnoticed")
        return info_fields(replies)


def info_fields(replies: Iterable[Reply]) -> Info:
    """Return all fields of the replies to INFO. Replies that are errors have none."""
    lines = (line for reply in replies if isinstance(reply, bytes) for line in reply.splitlines())
    return {name: value for name, found, value in (line.partition(b":") for line in lines) if found}


def is_volatile(info: Info) -> bool:
    """Return True if Redis evicts only keys with an expiry; korvet's keys have none."""
    return info.get(b"maxmemory_policy", b"").startswith(b"volatile-")


def eviction(info: Info) -> str | None:
    """Return how the server can evict korvet's keys, or None if it cannot."""
    policy, limit = info.get(b"maxmemory_policy", b"noeviction"), info.get(b"maxmemory", b"0")
    if policy == b"noeviction" or is_volatile(info) or limit == b"0":
        return None
    return f"it may evict any key (maxmemory {limit.decode()} bytes, maxmemory-policy {policy.decode()})"


def failing_file(info: Info) -> str | None:
    """Return the text for an append-only file that could not be written, or None."""
    if info.get(b"aof_enabled") == b"1" and info.get(b"aof_last_write_status", b"ok") != b"ok":
        return "it cannot write its append-only file (aof_last_write_status)"
    return None


def evicted_keys(info: Info) -> int:
    """Return the number of keys that the server has evicted since its start."""
    return int(info.get(b"evicted_keys", b"0"))
