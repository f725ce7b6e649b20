"""A transactional producer that calls handlers, in any version, and a consumer that reads the result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from attrs import define, field

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode, UnknownTopicOrPartition
from korvet.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from korvet.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from korvet.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.messages.produce import PartitionProduceResponse
from korvet.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from korvet.storage.interface import TopicPartition
from tests.handlers.support import T0, ask, batch, produce_request

LIMIT_S = 10
STAGED_BY_ID = 6  # the first version of TxnOffsetCommit that has ids of topics


@asynccontextmanager
async def coordinating(broker: Broker) -> AsyncIterator[Broker]:
    """Run the coordinator of the broker's transactions for the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.transactions.run)
        yield broker
        nursery.cancel_scope.cancel()


async def settled(broker: Broker, transactional_id: str = "x") -> str:
    """Wait until no markers of the id are left to be written, and return its state."""
    with trio.fail_after(LIMIT_S):
        while (found := await broker.transactions.describe(transactional_id)).is_prepared:  # noqa: ASYNC110
            await trio.sleep(0.001)
    return found.state.value


def asked(*tps: TopicPartition) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for tp in tps:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return [AddPartitionsToTxnTopic(name=name, partitions=found) for name, found in topics.items()]


@define
class TransactionalProducer:
    """A producer; `version` is its transaction.version. Principals are those of `ask`."""

    broker: Broker
    transactional_id: str = "x"
    version: int = 2
    producer_id: int = -1
    epoch: int = -1
    options: dict[str, Any] = field(factory=dict)
    sequences: dict[TopicPartition, int] = field(factory=dict)

    async def ask(self, key: int, version: int, request: object) -> Any:
        return await ask(self.broker, key, version, request, **self.options)

    async def init(
        self, *, version: int = 5, timeout_ms: int = 60_000, expected: tuple[int, int] = (-1, -1)
    ) -> InitProducerIdResponse:
        """Send InitProducerId, and use its result."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        response = await self.ask(22, version, request)
        assert isinstance(response, InitProducerIdResponse)
        if not response.error_code:
            self._use(response.producer_id, response.producer_epoch)
        return response

    def _use(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    async def add(self, *tps: TopicPartition, version: int = 3) -> list[ErrorCode]:
        """Send AddPartitionsToTxn. Return the error of each partition, in the order of the response."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=asked(*tps),
        )
        response = await self.ask(24, version, request)
        return [
            ErrorCode(each.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ]

    async def add_group(self, group_id: str = "g", *, version: int = 4) -> ErrorCode:
        """Send AddOffsetsToTxn."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        return ErrorCode((await self.ask(25, version, request)).error_code)

    def batch(self, tp: TopicPartition, *values: bytes) -> bytearray:
        """Return the next batch for a partition."""
        sequence = self.sequences.get(tp, 0)
        return batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    async def try_send(
        self, *values: bytes, tps: Sequence[TopicPartition] = (T0,), version: int | None = None
    ) -> list[PartitionProduceResponse]:
        """Send the values to each partition. Return the responses."""
        batches: dict[TopicPartition, bytes | bytearray | None] = {tp: self.batch(tp, *values) for tp in tps}
        request = produce_request(batches, transactional_id=self.transactional_id)
        spoken = (12 if self.version >= 2 else 11) if version is None else version
        response = await self.ask(0, spoken, request)
        responses = [each for topic in response.responses for each in topic.partition_responses]
        for tp, each in zip(tps, responses, strict=True):
            if not each.error_code:
                self.sequences[tp] = self.sequences.get(tp, 0) + len(values)
        return responses

    async def send(self, *values: bytes, tp: TopicPartition = T0) -> int:
        """Add the partition if the version requires it, and send. Return the base offset."""
        if self.version < 2:
            assert [ErrorCode.NONE] == await self.add(tp)
        (response,) = await self.try_send(*values, tps=[tp])
        assert not response.error_code, response
        offset: int = response.base_offset
        return offset

    async def stage(
        self,
        offset: int,
        *,
        group_id: str = "g",
        tp: TopicPartition = T0,
        metadata: str = "",
        version: int | None = None,
        **member: Any,
    ) -> ErrorCode:
        """Send TxnOffsetCommit."""
        partition = TxnOffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=offset, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=tp.topic, partitions=[partition])],
            **member,
        )
        spoken = (5 if self.version >= 2 else 4) if version is None else version
        if spoken >= STAGED_BY_ID:
            await self._name_by_id(request.topics[0])
        response = await self.ask(28, spoken, request)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    async def _name_by_id(self, topic: TxnOffsetCommitRequestTopic) -> None:
        with suppress(UnknownTopicOrPartition):
            topic.topic_id = (await self.broker.find_topic(topic.name)).topic_id
        topic.name = ""

    async def end(self, *, commit: bool = True, version: int | None = None) -> EndTxnResponse:
        """Send EndTxn, and use its result."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        spoken = (5 if self.version >= 2 else 4) if version is None else version
        response = await self.ask(26, spoken, request)
        assert isinstance(response, EndTxnResponse)
        if self.version >= 2 and not response.error_code:
            self._use(response.producer_id, response.producer_epoch)
        return response

    async def finish(self, *, commit: bool = True) -> None:
        """End the transaction, and wait for its markers."""
        response = await self.end(commit=commit)
        assert not response.error_code, response
        await settled(self.broker, self.transactional_id)


async def fetched(
    broker: Broker, tp: TopicPartition = T0, *, offset: int = 0, isolation_level: int = 1, version: int = 12
) -> PartitionData:
    """Fetch a partition once."""
    partition = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=2**20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=2**20,
        isolation_level=isolation_level,
        topics=[FetchTopic(topic=tp.topic, partitions=[partition])],
    )
    response = await ask(broker, 1, version, request)
    data: PartitionData = response.responses[0].partitions[0]
    return data
