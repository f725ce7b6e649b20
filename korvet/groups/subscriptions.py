"""What the members of a consumer group subscribe to, and the topics that exist."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from uuid import UUID

from attrs import frozen

# Bytes of a hash of topics.
HASH_BYTES = 8


@frozen
class Topic:
    """A topic that exists."""

    name: str
    topic_id: UUID
    partitions: int


# The existing topics by name. The caller passes the same object as long as no topic has changed.
Topics = Mapping[str, Topic]
# Topic id -> partitions.
Assignment = Mapping[UUID, frozenset[int]]


@frozen
class Subscription:
    """The topics that a member subscribes to: names, and those that match an expression ("" for none)."""

    names: frozenset[str] = frozenset()
    expression: str = ""


def subscribed_hash(topics: Iterable[Topic]) -> int:
    """Return a hash of names, ids and numbers of partitions. It is the same in every process."""
    digest = blake2b(digest_size=HASH_BYTES)
    for topic in sorted(topics, key=lambda each: each.name):
        name = topic.name.encode()
        digest.update(struct.pack(">I16sI", len(name), topic.topic_id.bytes, topic.partitions) + name)
    return int.from_bytes(digest.digest())


def is_subset(some: Assignment, of: Mapping[UUID, Mapping[int, int] | frozenset[int]]) -> bool:
    """Return True if `of` contains every partition of `some`."""
    return all(
        partition in of.get(topic_id, ()) for topic_id, partitions in some.items() for partition in partitions
    )
