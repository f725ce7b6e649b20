"""The partitions that a broker keeps: their memory, and their topics."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import cast
from uuid import uuid4

import trio
from attrs import define, evolve

from korvet.storage.interface import StorageDefaults, Topic, TopicConfig, TopicPartition
from korvet.storage.redis.catalogue import Catalogue, CataloguedTopic
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.keys import Keyspace
from korvet.storage.redis.leader_epochs import LeaderEpochs
from korvet.storage.redis.partition import Known
from korvet.storage.redis.partitions import Partitions

COUNT = 1000
MOST_BYTES = 400  # 100,000 partitions: 40 MB
MOST_BYTES_IN_USE = 550


@define
class OneTopic:
    """A catalogue that has cached one topic."""

    catalogued: CataloguedTopic

    def cached(self, _name: str) -> CataloguedTopic:
        return self.catalogued


def topic(config: TopicConfig | None = None) -> CataloguedTopic:
    return CataloguedTopic(Topic("t", uuid4(), COUNT, MappingProxyType({}), config or TopicConfig()), 1, 0)


def partitions_of(catalogue: OneTopic) -> Partitions:
    """Return partitions that send no command to Redis."""
    no_redis = cast(RedisCaller, None)
    epochs = LeaderEpochs(no_redis, Keyspace(), cast(trio.Nursery, None))
    return Partitions(no_redis, cast(Catalogue, catalogue), Keyspace(), StorageDefaults(), epochs)


@contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def test_partition_that_was_looked_at_takes_little_memory() -> None:
    partitions = partitions_of(OneTopic(topic()))
    tps = [TopicPartition("t", number) for number in range(COUNT)]
    with traced():
        for tp in tps:
            partitions.known(tp)
        taken, _ = tracemalloc.get_traced_memory()

    assert taken / COUNT < MOST_BYTES


def test_partition_whose_state_was_read_takes_little_memory() -> None:
    partitions = partitions_of(OneTopic(topic()))
    tps = [TopicPartition("t", number) for number in range(COUNT)]
    with traced():
        for tp in tps:
            partition = partitions.known(tp)
            assert partition is not None
            end = b"1763666000123-%d" % tp.partition
            # Each reply has its own bytes.
            fields = [
                partition.topic_id,
                end,
                b"0-0",
                b"7",
                b"700",
                b"0",
                b"100",
                b"0:0-%d" % (tp.partition // COUNT),
                b"0-0",
                b"x",
                None,
                b"",
                None,
            ]
            state = partition.state(fields, 7)
            assert state is not None
            partition.note(state.leader_epoch, state.next_id)
        taken, _ = tracemalloc.get_traced_memory()

    assert taken / COUNT < MOST_BYTES_IN_USE


def test_transaction_whose_confirmed_marker_was_lost_holds_the_last_stable_offset() -> None:
    partition = partitions_of(OneTopic(topic())).known(TopicPartition("t", 0))
    assert partition is not None
    fields = [partition.topic_id, b"9-0", b"0-0", b"7", b"700", b"0", b"100", b"0:0-0", b"0-0", b"x", b"9-0"]
    read = partition.state([*fields, b"5-0", b""], 7)
    assert read is not None
    open_one = read.first_open
    assert open_one is not None
    confirmed = read._replace(visible=Known(0, partition.bound(b"8-0"), b"8-0", None))

    assert open_one.offset == partition.bound(b"5-0") == confirmed.last_stable_offset
    assert b"5-0" == confirmed.stable_id
    later = read._replace(visible=Known(0, partition.bound(b"4-0"), b"4-0", None))
    assert partition.bound(b"4-0") == later.last_stable_offset
    before = read._replace(visible=Known(0, partition.bound(b"8-0"), b"8-0", partition.first_open(b"3-0")))
    assert partition.bound(b"3-0") == before.last_stable_offset


def test_altered_settings_apply_to_partitions_in_use() -> None:
    catalogue = OneTopic(topic())
    partitions = partitions_of(catalogue)
    first, second = (partitions.known(TopicPartition("t", number)) for number in (0, 1))
    assert first is not None
    assert second is not None
    before = first.arguments(b"server")

    present = catalogue.catalogued.topic
    altered = evolve(present, config=evolve(present.config, retention_ms=1234))
    catalogue.catalogued = catalogue.catalogued._replace(topic=altered)

    assert first is partitions.known(first.tp)
    assert 1234 == second.config.retention_ms
    assert before != first.arguments(b"server") == second.arguments(b"server")


def test_topic_that_is_created_again_has_new_partitions() -> None:
    catalogue = OneTopic(topic())
    partitions = partitions_of(catalogue)
    old = partitions.known(TopicPartition("t", 0))
    catalogue.catalogued = topic()._replace(created=2)
    new = partitions.known(TopicPartition("t", 0))

    assert old is not None
    assert new is not None
    assert old.topic_id != new.topic_id
    assert new is partitions.known(new.tp)
