"""The catalogue of topics in Redis: one hash, name -> JSON, shared by all brokers.

A broker keeps what it has read until an entry in the stream of changes says that another broker altered something.
Whoever alters the catalogue writes that entry right after it, in the same write. A broker that dies in between tells
nobody; then the others learn it from the scripts, which refuse a topic id that is not the partition's, and from a
look at the store before a topic is said not to exist.

What was known is kept beside for as long as the store cannot be asked: a topic that is there must not seem to be gone
because Redis is away for a moment, since consumers would give up its partitions. Whatever is then done with such a
topic goes to Redis itself, and waits, or fails, there.

Every creation gets a number, so that of two topics of one name the later can be told from the earlier.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, cast
from uuid import UUID, uuid4

from attrs import define, field
from cattrs.preconf.json import make_converter

from korvet.protocol.errors import (
    InvalidPartitions,
    KafkaStorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from korvet.storage.interface import DocumentConflict, StorageDefaults, Topic, TopicPartition
from korvet.storage.redis_caller import RedisCaller
from korvet.storage.redis_keys import Keyspace
from korvet.storage.redis_replies import as_map
from korvet.storage.redis_scripts import REPLACE
from korvet.storage.topic_config import fixed_settings, topic_config, with_fixed_settings

CREATED = b"$created"  # field of the hash beside the topics: how many were ever created
# A broker that was away for longer than this many changes reads everything anew anyway.
CHANGES_KEPT = 1000

converter = make_converter()


@define
class StoredTopic:
    """A topic as JSON has it."""

    id: str
    created: int
    partitions: int
    settings: dict[str, str]


class CataloguedTopic(NamedTuple):
    """A topic, and its number in the order of creations."""

    topic: Topic
    created: int


@define(eq=False)
class Catalogue:
    """The topics as this broker knows them, and the ways to know better."""

    redis: RedisCaller
    keyspace: Keyspace
    defaults: StorageDefaults
    _topics: dict[str, CataloguedTopic] = field(factory=dict)
    _is_complete: bool = False  # whether a name that is not among them is no topic
    _last_known: dict[str, CataloguedTopic] = field(factory=dict)  # before we were told to forget it
    _was_complete: bool = False  # whether all topics were among those
    # How often something was altered, by others or by ourselves: an answer that was asked for before is too old to be
    # kept, and tasks take up their answers in any order.
    _changes: int = 0

    # --- Looking up -------------------------------------------------------------------------------------

    def cached(self, name: str) -> CataloguedTopic | None:
        """A topic that is known; asks nobody."""
        return self._topics.get(name)

    def forget(self) -> None:
        """Somebody has altered the catalogue: what is known is no longer to be relied on."""
        self._last_known = self._topics if self._is_complete else {**self._last_known, **self._topics}
        self._was_complete |= self._is_complete
        self._topics = {}
        self._is_complete = False
        self._changes += 1

    async def all(self) -> Mapping[str, Topic]:
        """All topics by name; as they were known last, where the store cannot be asked."""
        topics = self._topics if self._is_complete else await self._loaded()
        return MappingProxyType({name: each.topic for name, each in topics.items()})

    async def find(self, name: str) -> CataloguedTopic | None:
        """A topic by name; as known, else as the store has it, else as it was known last."""
        last_known = self._last_known.get(name)
        if name in self._topics:
            return self._topics[name]
        if last_known is not None and not self.redis.connection.is_connected:
            return last_known
        try:
            return await self.reload(name)
        except KafkaStorageError:
            if last_known is None:
                raise
            return last_known

    async def find_by_id(self, topic_id: UUID) -> Topic | None:
        """A topic by its id; as `find`."""
        found = with_id(self._topics, topic_id)
        if found is None and not self.redis.connection.is_connected:
            found = with_id(self._last_known, topic_id)
        return found or with_id(await self._loaded(), topic_id)

    async def _loaded(self) -> Mapping[str, CataloguedTopic]:
        """All topics as the store has them, or as they were known last."""
        try:
            if self.redis.connection.is_connected or not self._was_complete:
                await self.load()
                return self._topics
        except KafkaStorageError:
            if not self._was_complete:
                raise
        return {**self._last_known, **self._topics}

    async def reload(self, name: str) -> CataloguedTopic | None:
        """A topic as the store has it."""
        changes = None
        while changes != self._changes:
            changes = self._changes
            reply = await self.redis.execute(b"HGET", self.keyspace.topics, name, repeatable=True)
        stored = cast(bytes | None, reply)
        if stored is None:
            self._topics.pop(name, None)
            self._last_known.pop(name, None)
            return None
        return self._note(name, stored)

    async def load(self) -> None:
        """Read all topics."""
        changes = None
        while changes != self._changes:
            changes = self._changes
            fields = as_map(await self.redis.execute(b"HGETALL", self.keyspace.topics, repeatable=True))
        known, self._topics = self._topics, {}
        for name, stored in fields.items():
            if not name.startswith(b"$"):
                self._note(name.decode(), cast(bytes, stored), known.get(name.decode()))
        self._is_complete = True

    def _note(self, name: str, stored: bytes, known: CataloguedTopic | None = None) -> CataloguedTopic:
        """Remember a topic; the same object as before where nothing about it has changed."""
        found = self._topic(name, stored)
        known = known or self._topics.get(name)
        if known != found:
            known = found
        self._topics[name] = known
        return known

    def _topic(self, name: str, stored: bytes) -> CataloguedTopic:
        content = converter.loads(stored, StoredTopic)
        config = topic_config(content.settings, self.defaults.topic_config)
        settings = MappingProxyType(content.settings)
        return CataloguedTopic(
            Topic(name, UUID(content.id), content.partitions, settings, config), content.created
        )

    # --- Altering ---------------------------------------------------------------------------------------

    async def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        """A new topic."""
        if await self.reload(name) is not None:
            raise TopicAlreadyExists
        settings = with_fixed_settings(settings, self.defaults.topic_config)
        topic_config(settings, self.defaults.topic_config)  # raises for nonsense before anything is stored
        # A number that is given twice, since the first answer was lost, is one that nobody has.
        counted = await self.redis.execute(b"HINCRBY", self.keyspace.topics, CREATED, 1, repeatable=True)
        created = cast(int, counted)
        stored = as_json(StoredTopic(str(uuid4()), created, partitions, settings))
        if not await self._replace(name, b"", stored):
            raise TopicAlreadyExists
        return self._note(name, stored).topic

    async def alter(self, topic: Topic, partitions: int | None, settings: Mapping[str, str] | None) -> Topic:
        """The topic with more partitions, or other settings."""
        present, stored = await self._stored(topic)
        if present.topic != topic:
            raise DocumentConflict
        if partitions is None:
            partitions = topic.partitions
        if partitions < topic.partitions:
            raise InvalidPartitions(
                f"topic {topic.name} has {topic.partitions} partitions, and can only get more"
            )
        settings = {**(topic.settings if settings is None else settings), **fixed_settings(topic.settings)}
        topic_config(settings, self.defaults.topic_config)
        altered = as_json(StoredTopic(str(topic.topic_id), present.created, partitions, settings))
        if not await self._replace(topic.name, stored, altered):
            raise DocumentConflict
        return self._note(topic.name, altered).topic

    async def delete(self, topic: Topic) -> CataloguedTopic:
        """Take the topic with that id out of the catalogue; as it was there last."""
        while True:
            present, stored = await self._stored(topic)
            if await self._replace(topic.name, stored, b""):
                self._topics.pop(topic.name, None)
                self._last_known.pop(topic.name, None)
                return present

    async def _stored(self, topic: Topic) -> tuple[CataloguedTopic, bytes]:
        """The topic as it is now, and its JSON."""
        stored = cast(bytes | None, await self.redis.execute(b"HGET", self.keyspace.topics, topic.name))
        present = None if stored is None else self._topic(topic.name, stored)
        if stored is None or present is None or present.topic.topic_id != topic.topic_id:
            raise UnknownTopicOrPartition
        return present, stored

    async def _replace(self, name: str, expected: bytes, new: bytes) -> bool:
        """Compare and set the JSON of one topic, and tell the other brokers."""
        announcement = (b"XADD", self.keyspace.changes, b"MAXLEN", b"~", CHANGES_KEPT, b"*", b"topic", name)
        # A full server takes deletions, and refuses to have them announced; those who are not told find out.
        replaced = await self.redis.run_then(
            REPLACE, [self.keyspace.topics], [name, expected, new], announcement, can_do_without=True
        )
        self._changes += 1
        return replaced == 1


def with_id(topics: Mapping[str, CataloguedTopic], topic_id: UUID) -> Topic | None:
    """The topic with that id among some."""
    return next((each.topic for each in topics.values() if each.topic.topic_id == topic_id), None)


def as_json(topic: StoredTopic) -> bytes:
    return json.dumps(converter.unstructure(topic)).encode()


def partitions_of(topic: Topic) -> list[TopicPartition]:
    """All partitions of a topic."""
    return [TopicPartition(topic.name, number) for number in range(topic.partitions)]
