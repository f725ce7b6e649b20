"""Retention while writing: what retention.ms and retention.bytes drop, and what they leave."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from korvet.protocol.errors import UnknownTopicOrPartition
from korvet.storage.interface import LogOffsets, Storage, StorageDefaults, TopicPartition
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import T0, Producer, Record, append, read, records_from

MB = 1_000_000


class RetentionContract(Contract):
    """Retention may drop records in pieces of any size up to about 1 MB, as the backend chooses."""

    @pytest.fixture
    async def eager(self, environment: Environment) -> AsyncIterator[Storage]:
        """Yield a storage without a minimum age for retention."""
        async with environment.open(StorageDefaults(retention_check_interval_ms=0)) as storage:
            yield storage

    async def test_bytes_beyond_the_limit_are_dropped(self, eager: Storage, environment: Environment) -> None:
        tp = await topic_with(eager, environment, {"retention.bytes": str(2 * MB)})
        start = (await eager.latest(tp)).log_start_offset
        await append_mb(eager, tp, 6)
        kept = await bytes_kept(eager, tp)

        assert 2 * MB <= kept <= 3.5 * MB
        assert (await eager.latest(tp)).log_start_offset > start

    async def test_retention_keeps_the_end_of_the_log(self, eager: Storage, environment: Environment) -> None:
        tp = await topic_with(eager, environment, {"retention.bytes": str(MB)})
        await append_mb(eager, tp, 4)
        bounds = await eager.latest(tp)
        found = await records_from(eager, tp)
        earliest = await eager.earliest(tp)
        numbers = [int((record.value or b"")[:6]) for record in found]

        assert earliest.offset == bounds.log_start_offset <= found[0].offset
        assert bounds.high_watermark - 1 == found[-1].offset
        assert list(range(numbers[0], 400)) == numbers

    async def test_consumer_that_read_all_dropped_records_misses_none(
        self, eager: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(eager, environment, {"retention.bytes": "0"})
        base = (await append(eager, tp, [Record(b"x" * MB)])).base_offset
        second = (await append(eager, tp, [Record(b"y" * MB)])).base_offset
        bounds = await eager.latest(tp)

        assert LogOffsets(bounds.log_start_offset, second + 1, second + 1) == bounds
        assert base < bounds.log_start_offset
        if bounds.log_start_offset <= second:
            assert bounds.log_start_offset == base + 1
            assert [second] == [each.offset for each in await records_from(eager, tp, base + 1)]

    async def test_unlimited_retention_keeps_all_records(
        self, eager: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(eager, environment, {"retention.bytes": "-1", "retention.ms": "-1"})
        start = (await eager.latest(tp)).log_start_offset
        await append_mb(eager, tp, 4)

        assert 400 == len(await records_from(eager, tp))
        assert start == (await eager.latest(tp)).log_start_offset

    async def test_old_records_are_dropped(self, eager: Storage, environment: Environment) -> None:
        tp = await topic_with(eager, environment, {"retention.ms": "3600000"})
        start = (await eager.latest(tp)).log_start_offset
        await append_mb(eager, tp, 4, timestamp=T0)
        found = await records_from(eager, tp)

        assert len(found) <= 110
        assert (await eager.latest(tp)).log_start_offset > start

    async def test_young_record_keeps_the_records_after_it(
        self, eager: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(eager, environment, {"retention.ms": "3600000"})
        start = (await eager.latest(tp)).log_start_offset
        await append(eager, tp, [Record(timestamp=4_102_444_800_000)])
        await append_mb(eager, tp, 4, timestamp=T0)

        assert 401 == len(await records_from(eager, tp))
        assert start == (await eager.latest(tp)).log_start_offset

    async def test_records_without_a_timestamp_expire_by_append_time(
        self, eager: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(eager, environment, {"retention.ms": "3600000"})
        await append_mb(eager, tp, 4, timestamp=-1)

        assert 400 == len(await records_from(eager, tp))

    async def test_recently_appended_records_are_kept_despite_old_timestamps(
        self, storage: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(storage, environment, {"retention.ms": "1"})
        await append_mb(storage, tp, 4, timestamp=T0)

        assert 400 == len(await records_from(storage, tp))

    async def test_retention_does_not_apply_to_the_compact_policy(
        self, eager: Storage, environment: Environment
    ) -> None:
        settings = {"cleanup.policy": "compact", "retention.ms": "1", "retention.bytes": "1"}
        tp = await topic_with(eager, environment, settings)
        await append_mb(eager, tp, 4, timestamp=T0)

        assert len(await records_from(eager, tp)) == 400

    async def test_producers_are_recognised_after_their_records_were_dropped(
        self, eager: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(eager, environment, {"retention.bytes": "0"})
        first = await append(eager, tp, [Record(b"x" * MB)], producer=Producer(7))
        await append(eager, tp, [Record(b"x" * MB)])
        again = await append(eager, tp, [Record(b"x" * MB)], producer=Producer(7))

        assert again.duplicate
        assert first.base_offset == again.base_offset

    async def test_seek_ts_finds_remaining_records(self, eager: Storage, environment: Environment) -> None:
        tp = await topic_with(eager, environment, {"retention.bytes": str(MB)})
        await append_mb(eager, tp, 4)
        found = await records_from(eager, tp)
        first, last = await eager.seek_ts(tp, 0), await eager.seek_ts(tp, T0)

        assert first is not None
        assert first.offset == found[0].offset
        assert last == first

    async def test_enforce_retention_trims_an_idle_partition(
        self, eager: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(eager, environment, {})
        await append_mb(eager, tp, 1, timestamp=T0)
        topic = await eager.topic(tp.topic)
        assert topic is not None
        await eager.alter_topic(topic, settings={**topic.settings, "retention.ms": "3600000"})
        end = (await eager.latest(tp)).high_watermark
        start = await eager.enforce_retention(tp)

        assert start == end
        assert LogOffsets(end, end, end) == await eager.latest(tp)
        assert await eager.enforce_retention(tp) is None

    async def test_enforce_retention_keeps_records_within_limits(
        self, eager: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(eager, environment, {"retention.bytes": str(2 * MB)})
        await append_mb(eager, tp, 1)
        start = await eager.enforce_retention(tp)

        assert start is None
        assert 100 == len(await records_from(eager, tp))

    async def test_local_retention_trims_archived_records_only(
        self, eager: Storage, environment: Environment
    ) -> None:
        settings = {
            "remote.storage.enable": "true",
            "local.retention.bytes": str(MB),
            "retention.bytes": "-1",
        }
        tp = await topic_with(eager, environment, settings)
        await append_mb(eager, tp, 4)
        found = await records_from(eager, tp)
        assert 400 == len(found)
        unasked = await eager.enforce_retention(tp)
        archived = found[150].offset
        start = await eager.enforce_retention(tp, up_to=archived)
        left = await records_from(eager, tp)
        whole = await eager.enforce_retention(tp, up_to=(await eager.latest(tp)).high_watermark)

        assert unasked is None
        assert start is not None
        assert found[50].offset < start <= archived
        assert 250 <= len(left) <= 350
        assert whole is not None
        assert 100 <= len(await records_from(eager, tp)) <= 150

    async def test_local_retention_defaults_to_retention(
        self, eager: Storage, environment: Environment
    ) -> None:
        tp = await topic_with(
            eager, environment, {"remote.storage.enable": "true", "retention.ms": "3600000"}
        )
        await append_mb(eager, tp, 1, timestamp=T0)
        end = (await eager.latest(tp)).high_watermark

        assert 100 == len(await records_from(eager, tp))
        assert end == await eager.enforce_retention(tp, up_to=end)

    async def test_unknown_topic_cannot_be_trimmed(self, storage: Storage) -> None:
        with pytest.raises(UnknownTopicOrPartition):
            await storage.enforce_retention(TopicPartition("nothing", 0))


async def topic_with(storage: Storage, environment: Environment, settings: dict[str, str]) -> TopicPartition:
    await storage.create_topic("kept", 1, {**environment.settings, "retention.ms": "-1", **settings})
    return TopicPartition("kept", 0)


async def append_mb(storage: Storage, tp: TopicPartition, megabytes: int, *, timestamp: int = T0) -> None:
    """Append records of 10 kB, ten to a batch."""
    for first in range(0, 100 * megabytes, 10):
        records = [Record(b"%06d" % n + b"x" * 9_994, timestamp=timestamp) for n in range(first, first + 10)]
        await append(storage, tp, records)


async def bytes_kept(storage: Storage, tp: TopicPartition) -> int:
    start = (await storage.latest(tp)).log_start_offset
    return (await read(storage, tp, start)).size
