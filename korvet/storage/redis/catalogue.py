"""The catalogue of topics in Redis: one hash, name -> JSON, shared by all brokers.

A broker caches topics until an entry in the stream of changes names a topic that was altered, and another version of it
than the broker has. It reads that topic again when it needs it. The broker that alters a topic adds that entry in the
same write. If it dies between the two
commands, no entry follows. Other brokers then detect the change by the scripts, which refuse a topic id that is not the
partition's, and because they read the store before they answer that a topic does not exist.

The last known topics are kept while Redis is unavailable: a short outage must not make a topic seem deleted, since
consumers would give up its partitions. Every further operation on such a topic goes to Redis, and waits or fails there.

Every creation has a number, which orders topics that had the same name at different times.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from hashlib import sha1
from types import MappingProxyType
from typing import NamedTuple, cast
from uuid import UUID, uuid4

from attrs import define, evolve, field
from cattrs.errors import BaseValidationError
from cattrs.preconf.json import make_converter

from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.errors import (
    InvalidPartitions,
    KafkaError,
    KafkaStorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from korvet.storage.damage import Damage
from korvet.storage.interface import DocumentConflict, StorageDefaults, Topic, TopicConfig, TopicPartition
from korvet.storage.offsets import offset_mapper
from korvet.storage.redis.append.layouts import layout_of
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.replies import as_map
from korvet.storage.redis.keys import Keyspace
from korvet.storage.redis.scripts import REPLACE
from korvet.storage.topic_config import fixed_settings, topic_config, with_fixed_settings

# Fields of the hash beside the topics.
CREATED = b"$created"  # number of topics ever created
# When a topic was last deleted, in ms since 1970. Producers with ids given out earlier may have written to that topic.
FORGOTTEN = b"$forgotten"
# Length of the stream of changes. A broker that was disconnected during more changes reads all topics again anyway.
CHANGES_KEPT = 1000

# More partitions than a broker can hold; clients are limited by `max.partitions`.
MOST_PARTITIONS = 1_000_000
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
# Errors raised by decoding and structuring JSON that another client wrote.
NONSENSE = (ValueError, TypeError, KeyError, OverflowError, RecursionError, BaseValidationError)

converter = make_converter()


@define
class StoredTopic:
    """A topic's JSON document in the catalogue."""

    id: str
    created: int
    partitions: int
    settings: dict[str, str]
    created_ms: int = 0  # by Redis's clock; missing in what earlier versions wrote


class CataloguedTopic(NamedTuple):
    """A topic, its number in the order of creations, and the time of its creation (ms, by Redis's clock)."""

    topic: Topic
    created: int
    created_ms: int


@define(eq=False)
class Catalogue:
    """The cache of topics, and the operations on the catalogue in Redis."""

    redis: RedisCaller
    keyspace: Keyspace
    defaults: StorageDefaults
    damage: Damage = field(factory=Damage)
    _topics: dict[str, CataloguedTopic] = field(factory=dict)
    _opened_ms: int = field(factory=lambda: time.time_ns() // 1_000_000)
    _is_complete: bool = False  # `_topics` has all topics, except those in `_altered`
    _last_known: dict[str, CataloguedTopic] = field(factory=dict)  # cached until invalidated
    _was_complete: bool = False  # `_last_known` has all topics
    # Names that this broker or another broker altered, each with the number of its alteration. A reply to a command
    # that was sent before that alteration is outdated and not cached; tasks process their replies in any order.
    _altered: dict[str, int] = field(factory=dict)
    _alterations: int = 0
    _forgotten: int = (
        0  # how often all topics were invalidated, which makes all replies to earlier commands outdated
    )
    _created: bytes | None = None  # number of creations when all topics were read
    _names: dict[UUID, str] = field(factory=dict)  # of topics that were looked up by id
    _listed: Mapping[str, Topic] | None = None  # the cached result of `all`, until a topic changes

    # --- Looking up -------------------------------------------------------------------------------------

    def cached(self, name: str) -> CataloguedTopic | None:
        """Return the topic if it is cached, without a command to Redis."""
        return self._topics.get(name)

    def forget(self) -> None:
        """Invalidate all topics, since other brokers may have altered any of them."""
        self._last_known = {**self._last_known, **self._topics}
        self._was_complete |= self._is_complete
        self._topics = {}
        self._is_complete = False
        self._altered.clear()
        self._forgotten += 1

    def forget_topic(self, name: str, version: bytes) -> None:
        """Invalidate one topic, which was altered, unless that version is cached; it is read again when needed.

        Every alteration is announced. So the announcement of the cached version is outdated, or is the last one.
        """
        if name in self._topics:
            if version_of(as_json(stored_topic(self._topics[name]))) == version:
                return
            self._last_known[name] = self._topics.pop(name)
        self._was_altered(name)

    def _was_altered(self, name: str) -> None:
        self._alterations += 1
        self._altered[name] = self._alterations
        self._listed = None

    async def all(self) -> Mapping[str, Topic]:
        """Return all topics by name; the last known ones if Redis is unavailable."""
        cached = self.all_cached()
        return listed(await self._loaded()) if cached is None else cached

    def all_cached(self) -> Mapping[str, Topic] | None:
        """Return all topics by name, or None if some are not cached."""
        if not self._is_complete or self._altered:
            return None
        if self._listed is None:
            self._listed = listed(self._topics)
        return self._listed

    async def find(self, name: str) -> CataloguedTopic | None:
        """Return a topic by name: from the cache, else from Redis, else as last known if Redis is unavailable."""
        last_known = self._last_known.get(name)
        if name in self._topics:
            return self._topics[name]
        if last_known is not None and not self.redis.is_connected(self.keyspace.topics):
            return last_known
        try:
            return await self.reload(name)
        except KafkaStorageError:
            if last_known is None:
                raise
            return last_known

    async def find_by_id(self, topic_id: UUID) -> Topic | None:
        """Return a topic by its id, from the same sources as `find`."""
        found = self.cached_with_id(topic_id)
        if found is None and not self.redis.is_connected(self.keyspace.topics):
            found = with_id(self._last_known, topic_id)
        elif found is None and self._is_complete:
            await self._find_creations()
        return found or with_id(await self._loaded(), topic_id)

    def cached_with_id(self, topic_id: UUID) -> Topic | None:
        """Return a cached topic by its id. Only the first look-up of an id goes through all topics."""
        each = self._topics.get(self._names.get(topic_id, ""))
        if each is not None and each.topic.topic_id == topic_id:
            return each.topic
        found = with_id(self._topics, topic_id)
        if found is not None:
            if len(self._names) > len(self._topics):
                self._names.clear()  # most are names of deleted topics
            self._names[topic_id] = found.name
        return found

    async def _find_creations(self) -> None:
        """Invalidate the cache if a topic was created whose entry in the stream of changes has not arrived yet."""
        created = await self.redis.execute(b"HGET", self.keyspace.topics, CREATED, repeatable=True)
        if created != self._created:
            self._was_complete |= self._is_complete
            self._is_complete = False

    async def _loaded(self) -> Mapping[str, CataloguedTopic]:
        """Return all topics from Redis, or the last known ones if Redis is unavailable."""
        was_complete = self._was_complete or self._is_complete
        try:
            if self.redis.is_connected(self.keyspace.topics) or not was_complete:
                await self.load()
                return self._topics
        except KafkaStorageError:
            if not was_complete:
                raise
        return {**self._last_known, **self._topics}

    async def reload(self, name: str) -> CataloguedTopic | None:
        """Read a topic from Redis, and cache it."""
        before = None
        while before != (self._forgotten, self._altered.get(name)):
            before = self._forgotten, self._altered.get(name)
            reply = await self.redis.execute(b"HGET", self.keyspace.topics, name, repeatable=True)
        return self._take(name, cast(bytes | None, reply))

    async def load(self) -> None:
        """Read all topics, or only the altered ones if all others are cached."""
        while self._altered or not self._is_complete:
            if self._is_complete:
                await self._read_altered()
            else:
                await self._read_all()

    async def _read_altered(self) -> None:
        forgotten, asked = self._forgotten, dict(self._altered)
        reply = await self.redis.execute(b"HMGET", self.keyspace.topics, *asked, repeatable=True)
        if forgotten != self._forgotten:
            return
        for (name, alteration), stored in zip(
            asked.items(), cast(Sequence[bytes | None], reply), strict=True
        ):
            if self._altered.get(name) == alteration:
                self._take(name, stored)

    async def _read_all(self) -> None:
        """Read all topics. Topics that are altered meanwhile stay in `_altered`."""
        forgotten, alterations = self._forgotten, self._alterations
        fields = as_map(await self.redis.execute(b"HGETALL", self.keyspace.topics, repeatable=True))
        time_slices = TimeSlices()
        found = {}
        for key, stored in fields.items():
            if not key.startswith(b"$"):
                name = key.decode(errors="replace")
                if (topic := self._topic(name, cast(bytes, stored))) is not None:
                    found[name] = topic
                await time_slices.next()
        if forgotten != self._forgotten or self._is_complete:
            return
        known = {**self._last_known, **self._topics}
        self._altered = {name: each for name, each in self._altered.items() if each > alterations}
        for name in self._altered:
            found.pop(name, None)
            if name in self._topics:
                found[name] = self._topics[name]
        # Keep the same object for a topic that has not changed.
        self._topics = {
            name: known[name] if known.get(name) == each else each for name, each in found.items()
        }
        self._last_known = {name: known[name] for name in self._altered if name in known}
        self._created = cast(bytes | None, fields.get(CREATED))
        self._is_complete = True
        self._listed = None

    def _take(self, name: str, stored: bytes | None) -> CataloguedTopic | None:
        """Cache the topic that Redis stores under that name; the reply is newer than every known alteration."""
        self._altered.pop(name, None)
        self._listed = None
        found = None if stored is None else self._note(name, stored)
        if found is None:
            self._topics.pop(name, None)
            self._last_known.pop(name, None)
        return found

    def _note(self, name: str, stored: bytes) -> CataloguedTopic | None:
        """Cache a topic, as the same object if it has not changed; return None if its document is damaged."""
        found = self._topic(name, stored)
        if found is None:
            return None
        known = self._topics.get(name, self._last_known.get(name))
        if known != found:
            known = found
        self._topics[name] = known
        return known

    def _topic(self, name: str, stored: bytes) -> CataloguedTopic | None:
        """Parse a topic; return None if another client has overwritten it with invalid data."""
        try:
            content = converter.loads(stored, StoredTopic)
            config = self._config(content.settings)
            topic_id = UUID(content.id)
            fixed_settings(content.settings)
            is_sensible = 0 < content.partitions <= MOST_PARTITIONS and content.created_ms >= 0
            if TOPIC_NAME.fullmatch(name) is None or not is_sensible:
                raise ValueError(f"{name!r} with {content.partitions} partitions")
        except (*NONSENSE, KafkaError) as error:
            self.damage.note(name, f"its entry in {self.keyspace.topics.decode()} is skipped: {error!r:.200}")
            return None
        topic = Topic(name, topic_id, content.partitions, MappingProxyType(content.settings), config)
        return CataloguedTopic(topic, content.created, content.created_ms)

    def _config(self, settings: Mapping[str, str]) -> TopicConfig:
        """Parse a topic's settings. Raise InvalidConfig for a value that storage cannot apply."""
        config = topic_config(settings, self.defaults.topic_config)
        offset_mapper(config)
        layout_of(config)
        return config

    async def forgotten_ms(self) -> bytes:
        """Return when a topic was last deleted, in ms since 1970; if none was, when this broker opened the store."""
        reply = await self.redis.execute(b"HGET", self.keyspace.topics, FORGOTTEN, repeatable=True)
        return cast(bytes | None, reply) or b"%d" % self._opened_ms

    # --- Altering ---------------------------------------------------------------------------------------

    async def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> CataloguedTopic:
        """Create a topic. Raise TopicAlreadyExists if the catalogue has that name."""
        if await self.reload(name) is not None:
            raise TopicAlreadyExists
        settings = with_fixed_settings(settings, self.defaults.topic_config)
        self._config(settings)  # raises for nonsense before anything is stored
        # If the first answer is lost and the command repeated, one number is skipped.
        created, created_ms = await self._count_creation()
        if self._created == b"%d" % (created - 1):
            self._created = b"%d" % created
        stored = as_json(StoredTopic(str(uuid4()), created, partitions, settings, created_ms))
        found = self._note(name, stored) if await self._replace(name, b"", stored) else None
        if found is None:
            raise TopicAlreadyExists
        return found

    async def _count_creation(self) -> tuple[int, int]:
        """Return a number for a new topic, and the time (ms)."""
        replies = await self.redis.pipeline(
            [(b"HINCRBY", self.keyspace.topics, CREATED, 1), (b"TIME",)], repeatable=True
        )
        for reply in replies:
            if isinstance(reply, Exception):
                raise self.redis.failure(reply)
        created, (seconds, microseconds) = cast(tuple[int, Sequence[bytes]], replies)
        return created, int(seconds) * 1000 + int(microseconds) // 1000

    async def alter(
        self, topic: Topic, partitions: int | None, settings: Mapping[str, str] | None
    ) -> CataloguedTopic:
        """Give the topic more partitions or other settings, and return it. See `Storage.alter_topic`."""
        present, stored = await self.stored(topic)
        if present.topic != topic:
            raise DocumentConflict
        if partitions is None:
            partitions = topic.partitions
        if partitions < topic.partitions:
            raise InvalidPartitions(
                f"topic {topic.name} has {topic.partitions} partitions, and can only get more"
            )
        settings = {**(topic.settings if settings is None else settings), **fixed_settings(topic.settings)}
        self._config(settings)
        altered = as_json(evolve(stored_topic(present), partitions=partitions, settings=settings))
        found = self._note(topic.name, altered) if await self._replace(topic.name, stored, altered) else None
        if found is None:
            raise DocumentConflict
        return found

    async def delete(self, topic: Topic) -> CataloguedTopic:
        """Remove the topic with that id from the catalogue; return its last version."""
        while True:
            present, stored = await self.stored(topic)
            if await self._replace(topic.name, stored, b""):
                self._topics.pop(topic.name, None)
                self._last_known.pop(topic.name, None)
                return present

    async def stored(self, topic: Topic) -> tuple[CataloguedTopic, bytes]:
        """Read the topic and its JSON. Raise UnknownTopicOrPartition if that topic id is gone."""
        stored = cast(bytes | None, await self.redis.execute(b"HGET", self.keyspace.topics, topic.name))
        present = None if stored is None else self._topic(topic.name, stored)
        if stored is None or present is None or present.topic.topic_id != topic.topic_id:
            raise UnknownTopicOrPartition
        return present, stored

    async def _replace(self, name: str, expected: bytes, new: bytes) -> bool:
        """Compare and set the JSON of one topic, and add an entry to the stream of changes; return True if set."""
        change = (b"topic", name, b"version", version_of(new))
        announcement = (b"XADD", self.keyspace.changes, b"MAXLEN", b"~", CHANGES_KEPT, b"*", *change)
        # A full Redis accepts the deletion and refuses the XADD. Other brokers then detect the change by themselves
        # (see the module's docstring).
        replaced = await self.redis.run_then(
            REPLACE, [self.keyspace.topics], [name, expected, new], announcement, can_do_without=True
        )
        self._was_altered(name)
        return replaced == 1


def listed(topics: Mapping[str, CataloguedTopic]) -> Mapping[str, Topic]:
    """Return the topics alone, by name."""
    return MappingProxyType({name: each.topic for name, each in topics.items()})


def with_id(topics: Mapping[str, CataloguedTopic], topic_id: UUID) -> Topic | None:
    """Return the topic with that id, or None."""
    return next((each.topic for each in topics.values() if each.topic.topic_id == topic_id), None)


def stored_topic(catalogued: CataloguedTopic) -> StoredTopic:
    """Return the stored form of a topic."""
    topic, created, created_ms = catalogued
    return StoredTopic(str(topic.topic_id), created, topic.partitions, dict(topic.settings), created_ms)


def version_of(stored: bytes) -> bytes:
    """Return what identifies one version of a topic in the stream of changes."""
    return sha1(stored, usedforsecurity=False).hexdigest().encode()


def as_json(topic: StoredTopic) -> bytes:
    return json.dumps(converter.unstructure(topic)).encode()


def partitions_of(topic: Topic) -> list[TopicPartition]:
    """Return all partitions of a topic."""
    return [TopicPartition(topic.name, number) for number in range(topic.partitions)]
