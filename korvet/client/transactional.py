"""Write records, and commit offsets, in a transaction: consumers at read_committed see all of it or nothing (KIP-98).

A transaction begins with InitProducerId, which aborts the open one of its transactional id and fences its producer. It
names its partitions with AddPartitionsToTxn before it writes to them, which every broker since Kafka 0.11 accepts. Each
has an epoch of its own, so a delayed batch cannot become part of a later one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import trio
from attrs import define, field

from korvet.client.cluster import GROUP, TRANSACTION, Cluster, error_about, raise_for, raise_worst
from korvet.client.model import OffsetAndMetadata, TopicPartition, by_topic
from korvet.client.producer_ids import Producer, new_producer
from korvet.protocol.errors import KafkaError, OperationNotAttempted
from korvet.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from korvet.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from korvet.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from korvet.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from korvet.protocol.record_batch import Producing

R = TypeVar("R")

TIMEOUT_MS = 60_000
# The last versions in which the client names partitions itself and the end does not change the epoch (KIP-890).
ADD_PARTITIONS = ADD_OFFSETS = 3
END = STAGE_OFFSETS = 4
# A transaction that could not be aborted within this time is aborted by its coordinator after its timeout.
ABORT_LIMIT_S = 5.0


@define(eq=False)
class Transaction(Producer):
    """An open transaction, and its producer. Pass it to `Client.produce`. One task at a time may use it."""

    transactional_id: str = field(kw_only=True)
    _cluster: Cluster = field(kw_only=True, repr=False)
    _added: set[TopicPartition] = field(factory=set, init=False)
    _has_offsets: bool = field(default=False, init=False)

    def next(self, tp: TopicPartition) -> Producing:
        """See `Producer.next`."""
        fields = super().next(tp)
        return Producing(
            fields.producer_id, fields.producer_epoch, fields.base_sequence, is_transactional=True
        )

    async def add(self, tps: Iterable[TopicPartition]) -> None:
        """Add the partitions that are not part of the transaction yet. Raises its KafkaErrors; ProducerFenced."""
        added = sorted(set(tps) - self._added)
        if not added:
            return
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=partitions)
                for name, partitions in by_topic(added).items()
            ],
        )

        async def attempt() -> None:
            answer = await self._ask_coordinator(request, AddPartitionsToTxnResponse, ADD_PARTITIONS)
            raise_worst(
                [
                    error_about(p.partition_error_code, TopicPartition(topic.name, p.partition_index))
                    for topic in answer.results_by_topic_v3_and_below
                    for p in topic.results_by_partition
                    # This one says of all partitions that another one has an error.
                    if p.partition_error_code not in (0, OperationNotAttempted.error_code)
                ]
            )

        await self._cluster.retrying(attempt)
        self._added.update(added)

    async def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Let the end of the transaction commit offsets of a group. Raises its KafkaErrors."""
        joining = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        staging = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=[_staged(p, offsets[TopicPartition(name, p)]) for p in partitions],
                )
                for name, partitions in by_topic(offsets).items()
            ],
        )

        async def join() -> None:
            answer = await self._ask_coordinator(joining, AddOffsetsToTxnResponse, ADD_OFFSETS)
            raise_for(answer.error_code, f"group {group_id}")

        async def stage() -> None:
            coordinator = await self._cluster.coordinator(group_id, GROUP)
            answer = await self._cluster.request(
                coordinator, staging, TxnOffsetCommitResponse, max_version=STAGE_OFFSETS
            )
            raise_worst(
                [
                    error_about(p.error_code, f"group {group_id}, {topic.name}-{p.partition_index}")
                    for topic in answer.topics
                    for p in topic.partitions
                    if p.error_code
                ]
            )

        await self._cluster.retrying(join)
        self._has_offsets = True
        await self._cluster.retrying(stage)

    async def end(self, *, is_committed: bool) -> None:
        """Commit or abort the transaction. Raises ProducerFenced if another producer has taken its transactional id."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_committed,
        )

        async def attempt() -> None:
            answer = await self._ask_coordinator(request, EndTxnResponse, END)
            raise_for(answer.error_code, f"transactional id {self.transactional_id}")

        if self._added or self._has_offsets:
            await self._cluster.retrying(attempt)

    async def _ask_coordinator(self, request: object, response: type[R], max_version: int) -> R:
        coordinator = await self._cluster.coordinator(self.transactional_id, TRANSACTION)
        return await self._cluster.request(coordinator, request, response, max_version=max_version)


@asynccontextmanager
async def open_transaction(
    cluster: Cluster,
    transactional_id: str,
    *,
    timeout_ms: int = TIMEOUT_MS,
    after: Transaction | None = None,
) -> AsyncIterator[Transaction]:
    """Begin a transaction for the block, and commit it at the end; abort it if the block raises.

    It fences every earlier producer of its id. With `after`, the previous transaction of the same producer, it is
    fenced itself if another one has begun since. The coordinator aborts it after `timeout_ms`. Raises KafkaError;
    UnsupportedVersion if the brokers have no transactions, InvalidTransactionTimeout. If the commit fails with a
    retriable error, its outcome is unknown: the next transaction with the id aborts this one, unless it was committed.
    """
    producer = await new_producer(cluster, transactional_id, timeout_ms, after)
    transaction = Transaction(
        producer.producer_id, producer.epoch, transactional_id=transactional_id, cluster=cluster
    )
    try:
        yield transaction
    except BaseException:
        # The coordinator does it after the timeout, if this fails; the error of the block is the one that counts.
        with trio.move_on_after(ABORT_LIMIT_S, shield=True), suppress(KafkaError):
            await transaction.end(is_committed=False)
        raise
    await transaction.end(is_committed=True)


def _staged(partition: int, offset: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )
