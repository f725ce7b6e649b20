"""Sizes: the bytes that the records of a partition take."""

from __future__ import annotations

import pytest

from korvet.protocol.errors import UnknownTopicOrPartition
from korvet.storage.interface import Storage, Topic, TopicPartition
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import Record, append

KB = 1000
# Tolerances in bytes: for dropped records that a store still counts, and for a record's size without its value.
PIECE = 64 * 1024 + 10 * KB
OVERHEAD = 200


class SizeContract(Contract):
    async def test_empty_partition_has_size_0(self, storage: Storage, tp: TopicPartition) -> None:
        assert {tp: 0} == await storage.sizes([tp])

    async def test_size_is_that_of_the_records(
        self, storage: Storage, topic: Topic, tp: TopicPartition
    ) -> None:
        other = TopicPartition(topic.name, 1)
        for _ in range(5):
            await append(storage, tp, [Record(b"x" * KB)] * 10)
        await append(storage, other, [Record(b"x" * KB)])
        sizes = await storage.sizes([other, tp])

        assert [other, tp] == list(sizes)
        assert KB <= number(sizes[other]) <= KB + OVERHEAD
        assert 50 * KB <= number(sizes[tp]) <= 50 * (KB + OVERHEAD)

    async def test_dropped_records_do_not_count(self, storage: Storage, tp: TopicPartition) -> None:
        offsets = [(await append(storage, tp, [Record(b"x" * 10 * KB)])).base_offset for _ in range(100)]
        before = number((await storage.sizes([tp]))[tp])
        await storage.truncate_before(tp, offsets[50])
        half = number((await storage.sizes([tp]))[tp])
        await storage.truncate_before(tp, (await storage.latest(tp)).high_watermark)
        emptied = number((await storage.sizes([tp]))[tp])

        assert before / 2 <= half <= before / 2 + PIECE
        assert 0 == emptied

    async def test_retention_reduces_the_size(self, storage: Storage, environment: Environment) -> None:
        settings = {**environment.settings, "retention.ms": "-1", "retention.bytes": str(100 * KB)}
        await storage.create_topic("kept", 1, settings)
        tp = TopicPartition("kept", 0)
        for _ in range(100):
            await append(storage, tp, [Record(b"x" * 10 * KB)])

        assert 100 * KB <= number((await storage.sizes([tp]))[tp]) <= 500 * KB

    async def test_another_broker_returns_the_same_size(
        self, storage: Storage, environment: Environment, tp: TopicPartition
    ) -> None:
        await append(storage, tp, [Record(b"x" * KB)])
        async with environment.open() as other:
            theirs = await other.sizes([tp])

        assert theirs == await storage.sizes([tp])

    async def test_unknown_partition_is_an_error_beside_other_sizes(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        missing, unknown = TopicPartition(tp.topic, 3), TopicPartition("nobody", 0)
        sizes = await storage.sizes([missing, tp, unknown])

        assert 0 == sizes[tp]
        assert isinstance(sizes[missing], UnknownTopicOrPartition)
        assert isinstance(sizes[unknown], UnknownTopicOrPartition)

    async def test_sizes_of_many_partitions(self, storage: Storage, environment: Environment) -> None:
        await storage.create_topic("wide", 600, environment.settings)
        tps = [TopicPartition("wide", number) for number in range(600)]
        await append(storage, tps[599], [Record(b"x" * KB)])
        sizes = await storage.sizes(tps)

        assert tps == list(sizes)
        assert [tps[599]] == [tp for tp, size in sizes.items() if size]


def number(size: object) -> int:
    """Return the size, and fail if it is an error."""
    if not isinstance(size, int):
        pytest.fail(f"no size: {size!r}")
    return size
