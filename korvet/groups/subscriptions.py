"""The subscriptions of the members of a consumer group, and the topics that exist."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from uuid import UUID

from attrs import define, field, frozen

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


@define(eq=False)
class Subscriptions:
    """The subscriptions of all members of a group, and the existing topics to which they lead.

    `resolved` has the names of the topics that match each expression.
    """

    resolved: dict[str, frozenset[str]] = field(factory=dict)
    is_stale: bool = True  # the topics to which they lead may have changed since `hash` was called
    has_topics: bool = False  # `see` was called
    _members: dict[Subscription, int] = field(factory=dict)  # number of members of each subscription
    _topics: Topics = field(factory=dict)

    _ids: dict[Subscription, frozenset[UUID]] = field(factory=dict)  # computed when needed

    def add(self, subscription: Subscription) -> None:
        """Count a member's subscription."""
        self._members[subscription] = self._members.get(subscription, 0) + 1
        self.is_stale = True

    def remove(self, subscription: Subscription) -> None:
        """Forget a member's subscription, and its expression if no other member has it."""
        self.is_stale = True
        self._members[subscription] -= 1
        if not self._members[subscription]:
            del self._members[subscription]
            self._ids.pop(subscription, None)
            if all(each.expression != subscription.expression for each in self._members):
                self.resolved.pop(subscription.expression, None)

    def resolve(self, expression: str, names: frozenset[str]) -> bool:
        """Set the names of the topics that match an expression. Return True if they have changed."""
        if self.resolved.get(expression) == names:
            return False
        self.resolved[expression] = names
        self._ids.clear()
        self.is_stale = True
        return True

    @property
    def topics(self) -> Topics:
        """The topics that `see` was called with last."""
        return self._topics

    def see(self, topics: Topics) -> None:
        """Use these topics from now on."""
        self.has_topics = True
        if topics is not self._topics:
            self._topics = topics
            self._ids.clear()
            self.is_stale = True

    def has_seen(self, topics: Topics) -> bool:
        """Return True if the group uses these topics, and nothing has changed since `hash` was called."""
        return topics is self._topics and not self.is_stale

    def ids(self, subscription: Subscription) -> frozenset[UUID]:
        """Return the ids of the existing topics to which a subscription leads."""
        ids = self._ids.get(subscription)
        if ids is None:
            found = map(self._topics.get, self._names(subscription))
            ids = self._ids[subscription] = frozenset(topic.topic_id for topic in found if topic is not None)
        return ids

    def hash(self) -> int:
        """Return the hash of all existing topics to which the subscriptions lead."""
        self.is_stale = False
        return subscribed_hash(self._existing())

    def counts(self) -> dict[UUID, int]:
        """Return the numbers of partitions of these topics."""
        return {topic.topic_id: topic.partitions for topic in self._existing()}

    def has(self, name: str) -> bool:
        """Return True if a member subscribes to the topic of that name."""
        return any(name in self._names(subscription) for subscription in self._members)

    def _names(self, subscription: Subscription) -> frozenset[str]:
        return subscription.names | self.resolved.get(subscription.expression, frozenset())

    def _existing(self) -> list[Topic]:
        names = frozenset[str]().union(*map(self._names, self._members))
        return [topic for topic in map(self._topics.get, names) if topic is not None]
