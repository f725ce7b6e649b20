"""Look for transactions that hang: open in a partition, while no coordinator has them.

The search of leftovers finds the partitions. The oldest transactions of each are looked at: one that hangs holds up the
last stable offset, so it is among them at last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from attrs import frozen

from korvet.doctor.findings import Finding, ok, warning
from korvet.protocol.text import quoted_list
from korvet.storage.redis.client.connection import RedisConnection
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.replies import Command, Reply
from korvet.storage.redis.keys import Keyspace

KIND = "transaction"
OLDEST = 100  # transactions of a partition
IDS_LIMIT = 100_000
AT_ONCE = 500
# A younger one may have been ended, or begun, while this program was looking.
YOUNGEST_MS = 60_000
WILL_END = ("Ongoing", "PrepareCommit", "PrepareAbort")


@frozen
class Open:
    """A transaction that is open in a partition since a time."""

    partition: str
    producer_id: int
    since_ms: int


async def hanging_findings(connection: RedisConnection, streams: Sequence[str], now_ms: int) -> list[Finding]:
    """Return the finding about transactions that are open in these partitions, given by the names of their streams."""
    opened = await _read_open(connection, streams)
    old = [each for each in opened if now_ms - each.since_ms > YOUNGEST_MS]
    if not old:
        return [ok("transactions", "none hangs")]
    ending = await _read_ending(connection)
    if ending is None:
        return [ok("transactions", f"not looked at: there are more than {IDS_LIMIT:,} transactional ids")]
    hanging = [each for each in old if (each.producer_id, each.partition) not in ending]
    if not hanging:
        return [ok("transactions", "none hangs")]
    partitions = quoted_list(sorted({each.partition for each in hanging}))
    return [
        warning(
            "transactions",
            f"open in {partitions}, and no coordinator will end them: consumers at read_committed wait there",
            "korvet transactions find-hanging TOPIC, then korvet transactions abort TOPIC PARTITION START-OFFSET",
        )
    ]


async def _read_open(connection: RedisConnection, streams: Sequence[str]) -> list[Open]:
    """Return the oldest open transactions of each partition. Entries of other clients are left out."""
    commands: list[Command] = [
        (b"XRANGE", f"{{{stream}}}:$open".encode(), b"-", b"+", b"COUNT", OLDEST) for stream in streams
    ]
    found = []
    for stream, reply in zip(streams, await _ask(connection, commands), strict=True):
        _, topic, partition = stream.split(":")
        for _, fields in cast(list[tuple[bytes, list[bytes]]], reply or []):
            if fields[::2] == [b"producer", b"time"] and all(each.isdigit() for each in fields[1::2]):
                found.append(Open(f"{topic}-{partition}", int(fields[1]), int(fields[3])))
    return found


async def _read_ending(connection: RedisConnection) -> set[tuple[int, str]] | None:
    """Return producer id and partition of the transactions that coordinators will end, or None for too many ids."""
    keyspace = Keyspace("korvet")
    (names,) = await _ask(connection, [(b"SMEMBERS", keyspace.documents(KIND))])
    ids = [name.decode() for name in cast(list[bytes], names or [])]
    if len(ids) > IDS_LIMIT:
        return None
    documents = await _ask(connection, [(b"HGET", keyspace.document(KIND, each), b"value") for each in ids])
    ending: set[tuple[int, str]] = set()
    for document in documents:
        try:
            values = json.loads(cast(bytes, document or b"{}"))
            if values.get("state") in WILL_END:
                for topic, _, partitions in values["partitions"]:
                    ending.update((values["producer_id"], f"{topic}-{each}") for each in partitions)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # damaged: the broker logs it and does not serve the id
    return ending


async def _ask(connection: RedisConnection, commands: Sequence[Command]) -> list[Reply]:
    """Return the replies, None for an error: another program may have overwritten a key."""
    replies: list[Reply] = []
    for start in range(0, len(commands), AT_ONCE):
        replies += await connection.pipeline(commands[start : start + AT_ONCE], repeatable=True)
    return [None if isinstance(reply, RedisError) else reply for reply in replies]
