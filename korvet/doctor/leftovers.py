"""Look for keys in Redis that korvet does not use any more, or that other clients have removed parts of.

The search is bounded by SEARCH_LIMIT_S and KEYS_LIMIT, and reports if it has seen only a part of the keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from time import monotonic, time_ns
from typing import cast

import trio
from attrs import define, field

from korvet.cluster.registration import UnreadableRegistration, read
from korvet.doctor.findings import Finding, error, ok, warning
from korvet.doctor.transactions import hanging_findings
from korvet.protocol.text import quoted_list
from korvet.storage.redis.client.connection import RedisConnection
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.replies import Reply, as_map
from korvet.storage.redis.keys import STATE_LENGTH, Keyspace

KEYS_LIMIT = 1_000_000
SEARCH_LIMIT_S = 5.0
KEYS_AT_ONCE = 1000
CONNECT_LIMIT_S = 1.0
BROKER_KIND = "broker"
PARTITION_KEY = re.compile(
    rb"\{?korvet:(?P<topic>[A-Za-z0-9._-]{1,249}):(?P<number>\d+)(?:\}:\$(?P<part>[a-z]+)[.a-z]*)?"
)


@define
class Search:
    """The keys that were found, by the state of their topic."""

    topics: dict[str, tuple[int, bool]]  # the number of partitions, and whether the topic is compacted
    seen: int = 0  # keys of the database, also of other programs
    is_complete: bool = False
    without_topic: list[str] = field(factory=list)
    without_stream: list[str] = field(factory=list)
    compactions: list[str] = field(factory=list)
    with_open: list[str] = field(factory=list)  # streams of partitions that have had transactions

    def sort(self, key: bytes) -> bool:
        """Sort a key. Return True if it is the state of a partition that exists."""
        found = PARTITION_KEY.fullmatch(key)
        if found is None:
            return False
        partitions, is_compacted = self.topics.get(found["topic"].decode(), (0, False))
        if int(found["number"]) >= partitions:
            self.without_topic.append(key.decode())
        elif found["part"] == b"compacted" and not is_compacted:
            self.compactions.append(key.decode())
        elif found["part"] == b"open":
            self.with_open.append(key[1 : key.index(b"}")].decode())
        return found["part"] == b"state" and int(found["number"]) < partitions


async def leftover_findings(connection: RedisConnection) -> list[Finding]:
    """Return the findings about keys of topics, open transactions, and registrations of brokers."""
    keyspace = Keyspace("korvet")
    (reply,) = await connection.pipeline([(b"HGETALL", keyspace.topics)], repeatable=True)
    if isinstance(reply, RedisError):
        return []  # the check of rights reports it
    try:
        search = Search(
            {name.decode(): topic_of(value) for name, value in as_map(reply).items() if name[:1] != b"$"}
        )
    except (ValueError, KeyError, TypeError, AttributeError) as damage:
        return [
            error("leftovers", f"the catalogue of topics is damaged: {damage!r:.200}", "restore a backup")
        ]
    refusal = await look(connection, search)
    if refusal is not None:
        return [
            ok("leftovers", f"not looked for: Redis refuses SCAN ({refusal})"),
            *await brokers(connection),
        ]
    hanging = await hanging_findings(connection, search.with_open, time_ns() // 1_000_000)
    return [*judged(search), *hanging, *await brokers(connection)]


def topic_of(document: Reply) -> tuple[int, bool]:
    """Return the number of partitions of a topic in the catalogue, and whether it is compacted."""
    values = json.loads(cast(bytes, document))
    return int(values["partitions"]), "compact" in values["settings"].get("cleanup.policy", "")


async def look(connection: RedisConnection, search: Search) -> RedisError | None:
    """Sort all keys of the namespace, within the limits. Return the error if SCAN is refused."""
    deadline, cursor = monotonic() + SEARCH_LIMIT_S, b"0"
    while search.seen < KEYS_LIMIT and monotonic() < deadline:
        command = (b"SCAN", cursor, b"MATCH", b"*korvet:*", b"COUNT", KEYS_AT_ONCE)
        (reply,) = await connection.pipeline([command], repeatable=True)
        if isinstance(reply, RedisError):
            return reply
        cursor, keys = cast(tuple[bytes, list[bytes]], reply)
        search.seen += KEYS_AT_ONCE
        await compare([key for key in keys if search.sort(key)], connection, search)
        if cursor == b"0":
            search.is_complete = True
            return None
    return None


async def compare(states: Sequence[bytes], connection: RedisConnection, search: Search) -> None:
    """Find the partitions whose state counts records, and whose stream does not exist."""
    streams = [key[1 : key.index(b"}")] for key in states]
    commands = [(b"HGET", key, STATE_LENGTH) for key in states] + [(b"EXISTS", key) for key in streams]
    if not commands:
        return
    replies = await connection.pipeline(commands, repeatable=True)
    lengths, exist = replies[: len(states)], replies[len(states) :]
    for stream, length, exists in zip(streams, lengths, exist, strict=True):
        if isinstance(length, bytes) and length != b"0" and exists == 0:
            search.without_stream.append(stream.decode())


def judged(search: Search) -> list[Finding]:
    """Return the findings of a search."""
    part = "" if search.is_complete else f"; only about {search.seen:,} keys were looked at"
    findings = []
    if search.without_topic:
        findings.append(
            warning(
                "leftovers",
                f"keys of partitions that are not in the catalogue: {listed(search.without_topic)}{part}",
                "redis-cli UNLINK KEY, unless a program of yours uses them",
            )
        )
    if search.without_stream:
        findings.append(
            warning(
                "leftovers",
                f"partitions with records whose stream does not exist: {listed(search.without_stream)}{part}",
                "another program has removed the streams; restore them from a backup, or delete the topics",
            )
        )
    if search.compactions:
        findings.append(
            warning(
                "leftovers",
                f"keys of compactions of topics that are not compacted any more: {listed(search.compactions)}{part}",
                "redis-cli UNLINK KEY, unless their topics were altered a moment ago",
            )
        )
    return findings or [ok("leftovers", f"there are none{part}")]


def listed(keys: list[str]) -> str:
    return f"{len(keys):,} ({quoted_list(keys, 3)})"


async def brokers(connection: RedisConnection) -> list[Finding]:
    """Try the address of each broker that is registered as living."""
    keyspace = Keyspace("korvet")
    (ids,) = await connection.pipeline([(b"SMEMBERS", keyspace.documents(BROKER_KIND))], repeatable=True)
    if isinstance(ids, RedisError):
        return []  # the check of rights reports it
    numbers = sorted(int(each) for each in cast("set[bytes]", ids) if each.isdigit())
    commands = [(b"HGET", keyspace.document(BROKER_KIND, str(number)), b"value") for number in numbers]
    documents = await connection.pipeline(commands, repeatable=True) if commands else []
    living, findings = [], []
    for number, document in zip(numbers, documents, strict=True):
        if not isinstance(document, bytes):
            continue
        try:
            registration = read(number, document)
        except UnreadableRegistration as damage:
            remedy = f"redis-cli UNLINK {keyspace.document(BROKER_KIND, str(number)).decode()} while it does not run"
            findings.append(error("brokers", str(damage), remedy))
            continue
        if registration.is_living:
            living.append(registration)
    silent: list[str] = []

    async def attempt(name: str, host: str, port: int) -> None:
        if not await accepts(host, port):
            silent.append(name)

    async with trio.open_nursery() as nursery:
        for each in living:
            host, port = next(iter(each.addresses.values()))
            nursery.start_soon(attempt, f"broker {each.node_id} at {each.address}", host, port)
    for name in sorted(silent):
        reason = f"{name} is registered as living, and cannot be reached from here"
        remedy = "if it has crashed: start it, or any broker, which declares it dead after broker.session.timeout.ms"
        findings.append(warning("brokers", reason, remedy))
    return findings or [ok("brokers", f"registered, and accepting connections: {len(living)}")]


async def accepts(host: str, port: int) -> bool:
    """Return True if a connection to the address is accepted within CONNECT_LIMIT_S."""
    with trio.move_on_after(CONNECT_LIMIT_S):
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError:
            return False
        await stream.aclose()
        return True
    return False
