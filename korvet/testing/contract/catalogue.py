"""Topics: create, find, alter, delete and re-create them."""

from __future__ import annotations

from uuid import uuid4

import pytest

from korvet.protocol.errors import InvalidPartitions, TopicAlreadyExists, UnknownTopicOrPartition
from korvet.storage.interface import (
    DocumentConflict,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetMapping,
    Storage,
    TimestampType,
    Topic,
    TopicPartition,
)
from korvet.testing.contract.base import Contract, eventually
from korvet.testing.environment import Environment
from korvet.testing.records import Producer, Record, append, numbered, read, records_from, stored


class CatalogueContract(Contract):
    async def test_description_and_durability_are_one_line(self, storage: Storage) -> None:
        for phrase in (storage.description, storage.durability):
            assert phrase == phrase.strip()
            assert "\n" not in phrase
            assert phrase

    async def test_store_has_no_topics_at_first(self, storage: Storage) -> None:
        assert {} == await storage.topics()

    async def test_new_topic_is_found_by_name_and_by_id(self, storage: Storage, topic: Topic) -> None:
        found = (
            await storage.topic("orders"),
            await storage.topic_by_id(topic.topic_id),
            (await storage.topics())["orders"],
        )

        assert (topic, topic, topic) == found

    @pytest.mark.usefixtures("topic")
    async def test_unknown_topic_is_not_found(self, storage: Storage) -> None:
        found = await storage.topic("payments"), await storage.topic_by_id(uuid4())

        assert (None, None) == found

    async def test_topic_ids_are_unique(self, storage: Storage, environment: Environment) -> None:
        topics = [await storage.create_topic(f"t{n}", 1, environment.settings) for n in range(20)]

        assert 20 == len({topic.topic_id for topic in topics})
        assert all(topic.topic_id.int > 1 for topic in topics)  # 0 and 1 mean something in Kafka

    async def test_existing_topic_name_is_refused(self, storage: Storage, topic: Topic) -> None:
        with pytest.raises(TopicAlreadyExists):
            await storage.create_topic("orders", 1, {})

        assert topic == await storage.topic("orders")

    async def test_fixed_settings_are_stored_with_the_topic(self, storage: Storage) -> None:
        topic = await storage.create_topic("orders", 1, {})

        assert {"storage.layout", "offset.mapping", "offset.sequence.bits"} == topic.settings.keys()
        assert topic.settings["offset.mapping"] == topic.config.mapping.value

    async def test_settings_are_stored_and_parsed(self, storage: Storage) -> None:
        settings = {
            "storage.layout": "batch",
            "offset.mapping": "dense",
            "offset.sequence.bits": "13",
            "message.timestamp.type": "LogAppendTime",
            "compression.type": "gzip",
            "retention.ms": "86400000",
            "retention.bytes": "1000000",
            "min.insync.replicas": "2",
            "max.message.bytes": "1234",
        }
        topic = await storage.create_topic("orders", 1, settings)

        assert settings == topic.settings
        assert topic.config.mapping is OffsetMapping.DENSE
        assert {"storage.layout": "batch", "offset.sequence.bits": "13"} == topic.config.backend_settings
        assert topic.config.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert "gzip" == topic.config.compression_type
        assert 86_400_000 == topic.config.retention_ms
        assert 1_000_000 == topic.config.retention_bytes
        assert 2 == topic.config.min_insync_replicas

    async def test_topic_names_may_contain_every_valid_character(
        self, storage: Storage, environment: Environment
    ) -> None:
        names = ["a.b", "a_b", "a-b", "A", "a", "0", "__x", "ab" * 124 + "c"]
        for name in names:
            await storage.create_topic(name, 1, environment.settings)
            await append(storage, TopicPartition(name, 0), [Record(name.encode())])
        values = {name: (await records_from(storage, TopicPartition(name, 0)))[0].value for name in names}

        assert set(names) == set(await storage.topics())
        assert values == {name: name.encode() for name in names}

    async def test_returned_topics_do_not_change(
        self, storage: Storage, topic: Topic, environment: Environment
    ) -> None:
        topics = await storage.topics()
        await storage.create_topic("payments", 1, environment.settings)
        await storage.delete_topic(topic)

        assert {"orders": topic} == dict(topics)

    # --- Altering ---------------------------------------------------------------------------------------

    async def test_partitions_can_be_added(self, storage: Storage, topic: Topic, tp: TopicPartition) -> None:
        before = await append(storage, tp, numbered(2))
        altered = await storage.alter_topic(topic, partitions=5)
        await append(storage, TopicPartition("orders", 4), numbered(1))

        assert 5 == altered.partitions
        assert topic.topic_id == altered.topic_id
        assert altered == await storage.topic("orders")
        assert stored(numbered(2), before.base_offset) == await records_from(storage, tp)

    async def test_partition_count_cannot_be_reduced(self, storage: Storage, topic: Topic) -> None:
        with pytest.raises(InvalidPartitions):
            await storage.alter_topic(topic, partitions=2)

    async def test_altered_settings_replace_the_old_ones(self, storage: Storage, topic: Topic) -> None:
        settings = {**topic.settings, "retention.ms": "5000"}
        altered = await storage.alter_topic(topic, settings=settings)
        again = await storage.alter_topic(altered, settings=topic.settings)

        assert settings == altered.settings
        assert 5000 == altered.config.retention_ms
        assert topic == again

    async def test_altered_settings_apply_to_the_next_append(
        self, storage: Storage, topic: Topic, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(1))
        settings = {**topic.settings, "message.timestamp.type": "LogAppendTime"}
        await storage.alter_topic(topic, settings=settings)
        result = await append(storage, tp, numbered(1))

        assert result.log_append_time_ms > 0

    async def test_fixed_settings_cannot_be_altered(self, storage: Storage, topic: Topic) -> None:
        altered = await storage.alter_topic(topic, settings={"offset.sequence.bits": "3"})

        assert topic.settings == altered.settings
        assert topic.config == altered.config

    async def test_alter_with_an_outdated_topic_conflicts(self, storage: Storage, topic: Topic) -> None:
        altered = await storage.alter_topic(topic, partitions=4)
        with pytest.raises(DocumentConflict):
            await storage.alter_topic(topic, settings={"retention.ms": "1"})

        assert altered == await storage.topic("orders")

    async def test_deleted_topic_cannot_be_altered(self, storage: Storage, topic: Topic) -> None:
        await storage.delete_topic(topic)

        with pytest.raises(UnknownTopicOrPartition):
            await storage.alter_topic(topic, partitions=4)

    # --- Deleting ---------------------------------------------------------------------------------------

    async def test_deleted_topic_is_not_found(self, storage: Storage, topic: Topic) -> None:
        await storage.delete_topic(topic)
        found = (
            await storage.topics(),
            await storage.topic("orders"),
            await storage.topic_by_id(topic.topic_id),
        )

        assert ({}, None, None) == found

    async def test_topic_is_deleted_once(self, storage: Storage, topic: Topic) -> None:
        await storage.delete_topic(topic)

        with pytest.raises(UnknownTopicOrPartition):
            await storage.delete_topic(topic)

    async def test_operations_on_a_deleted_topic_raise_unknown_topic_or_partition(
        self, storage: Storage, topic: Topic, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(1))
        await storage.delete_topic(topic)

        with pytest.raises(UnknownTopicOrPartition):
            await append(storage, tp, numbered(1))
        with pytest.raises(UnknownTopicOrPartition):
            await read(storage, tp, 0)
        for verb in (storage.earliest, storage.latest, storage.seek_max_ts):
            with pytest.raises(UnknownTopicOrPartition):
                await verb(tp)
        for number_verb in (storage.seek_ts, storage.epoch_end, storage.truncate_before):
            with pytest.raises(UnknownTopicOrPartition):
                await number_verb(tp, 0)

    async def test_partitions_out_of_range_are_unknown(self, storage: Storage, topic: Topic) -> None:
        for partition in (3, 1000, -1):
            with pytest.raises(UnknownTopicOrPartition):
                await storage.latest(TopicPartition(topic.name, partition))

    async def test_recreated_topic_has_a_new_id_and_is_empty(
        self, storage: Storage, topic: Topic, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(3))
        await storage.delete_topic(topic)
        recreated = await storage.create_topic("orders", 3, topic.settings)
        bounds = await storage.latest(tp)

        assert recreated.topic_id != topic.topic_id
        assert await storage.topic_by_id(topic.topic_id) is None
        assert OffsetAndTimestamp(bounds.high_watermark, -1) == await storage.earliest(tp)
        assert bounds.log_start_offset == bounds.high_watermark
        assert [] == await records_from(storage, tp)

    async def test_recreated_topic_has_no_state_of_the_old_one(
        self, storage: Storage, topic: Topic, tp: TopicPartition
    ) -> None:
        await append(storage, tp, numbered(3), producer=Producer(7))
        await storage.ack("billing", {tp: OffsetAndMetadata(2)})
        await storage.delete_topic(topic)
        await storage.create_topic("orders", 3, topic.settings)
        result = await append(storage, tp, numbered(3), producer=Producer(7))

        assert not result.duplicate
        assert {} == await storage.committed("billing")
        assert {} == await storage.committed("billing", [tp])
        assert OffsetAndTimestamp(result.base_offset, numbered(1)[0].timestamp) == await storage.seek_ts(
            tp, 0
        )

    async def test_deleting_an_old_topic_again_does_not_affect_the_recreated_one(
        self, storage: Storage, topic: Topic
    ) -> None:
        await storage.delete_topic(topic)
        recreated = await storage.create_topic("orders", 1, topic.settings)
        with pytest.raises(UnknownTopicOrPartition):
            await storage.delete_topic(topic)

        assert recreated == await storage.topic("orders")

    async def test_deleting_a_topic_does_not_affect_other_topics(
        self, storage: Storage, topic: Topic, environment: Environment
    ) -> None:
        await storage.create_topic("orders.eu", 1, environment.settings)
        eu = TopicPartition("orders.eu", 0)
        await append(storage, eu, numbered(1))
        await storage.ack("billing", {eu: OffsetAndMetadata(1)})
        await storage.delete_topic(topic)

        assert 1 == len(await records_from(storage, eu))
        assert {eu: OffsetAndMetadata(1)} == await storage.committed("billing")

    # --- A second broker --------------------------------------------------------------------------------

    async def test_topic_created_by_another_broker_is_found(
        self, environment: Environment, topic: Topic
    ) -> None:
        async with environment.open() as other:
            found = await other.topic("orders"), await other.topic_by_id(topic.topic_id)
            await eventually(other.topics, {"orders": topic})

        assert (topic, topic) == found

    async def test_topic_created_after_a_failed_lookup_is_found_immediately(
        self, storage: Storage, environment: Environment
    ) -> None:
        async with environment.open() as other:
            before = await other.topic("orders")
            topic = await storage.create_topic("orders", 1, environment.settings)
            found = await other.topic("orders"), await other.topic_by_id(topic.topic_id)
            await append(other, TopicPartition("orders", 0), numbered(1))

        assert before is None
        assert (topic, topic) == found

    async def test_alterations_by_another_broker_are_seen(
        self, storage: Storage, environment: Environment, topic: Topic
    ) -> None:
        async with environment.open() as other:
            await eventually(other.topics, {"orders": topic})
            altered = await storage.alter_topic(topic, partitions=5)
            await eventually(other.topics, {"orders": altered})
            await append(other, TopicPartition("orders", 4), numbered(1))

        assert 1 == len(await records_from(storage, TopicPartition("orders", 4)))

    async def test_conflict_refreshes_the_topic(
        self, storage: Storage, environment: Environment, topic: Topic
    ) -> None:
        async with environment.open() as other:
            await other.topic("orders")
            altered = await storage.alter_topic(topic, partitions=4)
            with pytest.raises(DocumentConflict):
                await other.alter_topic(topic, settings={"retention.ms": "1"})

            assert altered == await other.topic("orders")

    async def test_other_broker_appends_to_the_recreated_topic(
        self, storage: Storage, environment: Environment, topic: Topic, tp: TopicPartition
    ) -> None:
        async with environment.open() as other:
            await append(other, tp, numbered(1))
            await storage.delete_topic(topic)
            recreated = await storage.create_topic("orders", 3, topic.settings)
            await append(storage, tp, numbered(1, first=1))
            await eventually(other.topics, {"orders": recreated})
            start = (await storage.latest(tp)).log_start_offset
            result = await append(other, tp, numbered(1, first=2))
            values = [record.value for record in await records_from(other, tp)]

        assert [b"1", b"2"] == values
        assert start == result.log_start_offset

    async def test_topic_deleted_by_another_broker_is_unknown(
        self, storage: Storage, environment: Environment, topic: Topic, tp: TopicPartition
    ) -> None:
        async with environment.open() as other:
            await append(other, tp, numbered(1))
            await storage.delete_topic(topic)
            with pytest.raises(UnknownTopicOrPartition):
                await read(other, tp, 0)
            with pytest.raises(UnknownTopicOrPartition):
                await append(other, tp, numbered(1))
