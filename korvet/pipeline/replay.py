"""Replay archived records into a topic: the work for one partition of the archive.

Records keep key, value, headers and timestamp, and get another header with their origin:

    korvet.origin   "<id of the replay> <topic> <partition> <offset>"

This header makes a replay resumable. The replay's state is in the target's cluster: the group
`korvet-replay-<id>-<partition>` has a committed offset, from which to search the target for replayed records. The
commit's metadata has the next offset of the archive, for the case that there are none. So a replay that was killed
between sending and the response duplicates nothing. Within a run, the sequences of an idempotent producer prevent
duplicates.

A transactional replay commits that offset in the transaction of the records (KIP-98); the group's name is also the
transactional id. So two runs at once duplicate nothing either: the second one fences the first.

All records of an archived partition go to one partition of the target, in their order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import trio
from attrs import define, evolve, field, frozen

from korvet.client import LATEST, PLAINTEXT, Client, OffsetAndMetadata, Security, TopicPartition
from korvet.client.cluster import error_about
from korvet.client.isolation import READ_COMMITTED
from korvet.client.producer_ids import Producer
from korvet.client.producing import PRODUCE
from korvet.client.transactional import Transaction
from korvet.lake.encoding import Rows, chunks, column_of, encode_batch, spans
from korvet.lake.location import Location
from korvet.lake.remote import RemoteReader
from korvet.lake.row_batches import records_of
from korvet.pipeline.cluster import Connecting
from korvet.protocol.errors import DuplicateSequenceNumber, KafkaError, NotLeaderOrFollower
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

ORIGIN = "korvet.origin"
# Below the default limit of brokers.
BATCH_BYTES = 900_000
BATCH_RECORDS = 20_000
# Batches between checkpoints, which bounds how much a restart reads back, and the longest time between them, which
# keeps the reported progress recent.
BATCHES_A_CHECKPOINT = 50
CHECKPOINT_S = 1.0
# With a rate, a batch has the records of this many seconds.
BATCH_S = 0.2


@frozen
class Selection:
    """The records to replay: offsets in [start, end), timestamps (ms) in [from_ms, until_ms), those with this key."""

    start: int
    end: int
    from_ms: int | None = None
    until_ms: int | None = None
    key: bytes | None = None


@frozen
class Replay:
    """Source and target of a replay. `rate` is in records per second of one partition; 0 means unlimited.

    With `transactional`, records and progress are committed in transactions.
    """

    replay_id: str
    bootstrap_servers: str
    lake: Location
    topic: str
    topic_id: UUID
    target: str
    rate: float = 0.0
    dry_run: bool = False
    security: Security = PLAINTEXT
    request_timeout_s: float = 30.0
    transactional: bool = False

    def client(self) -> AbstractAsyncContextManager[Client]:
        return Connecting(
            self.bootstrap_servers, request_timeout_s=self.request_timeout_s, security=self.security
        ).open()

    @property
    def batch_records(self) -> int:
        """The largest number of records in a batch; smaller with a rate, so that records are spread evenly."""
        return BATCH_RECORDS if self.rate <= 0 else min(BATCH_RECORDS, max(1, round(self.rate * BATCH_S)))

    def group_id(self, partition: int) -> str:
        """Return the group of a partition's progress, which is also its transactional id."""
        return f"korvet-replay-{self.replay_id}-{partition}"


@frozen
class Replayed:
    """Result of a partition: records sent by this run, and an error, if any."""

    partition: int
    records: int
    error: str = ""

    def to_json(self) -> str:
        return json.dumps([self.partition, self.records, self.error])

    @classmethod
    def from_json(cls, text: str) -> Replayed:
        return cls(*json.loads(text))


def replay_partition(replay: Replay, partition: int, selection: Selection) -> Replayed:
    """Send the selected records of a partition that were not sent yet."""
    source = ArchivedRecords(replay, partition)
    if replay.dry_run:
        return Replayed(partition, source.count(selection))
    target = Target(replay, partition, source)
    try:
        trio.run(target.send_all, selection)
    except (KafkaError, OSError) as error:
        return Replayed(partition, target.sent, f"{replay.topic}-{partition}: {error}")
    return Replayed(partition, target.sent)


@frozen
class Batch:
    """Records to send, and the archive's offset after them."""

    rows: Rows
    next_offset: int


@define
class ArchivedRecords:
    """The archive's records, in the form in which they are sent."""

    replay: Replay
    partition: int
    reader: RemoteReader = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reader = RemoteReader(self.replay.lake, cache_bytes=0)

    def batches(self, selection: Selection) -> Iterator[Batch]:
        """Yield the selected records in order, in batches. Raises LakeError."""
        limit = self.replay.batch_records
        for rows in self._chosen(selection):
            offsets = rows["offset"].to_numpy()
            records = self._records(rows)
            for start, stop in spans(records):
                for first, end in chunks(records.slice(start, stop).sizes(), BATCH_BYTES):
                    for at in range(start + first, start + end, limit):
                        until = min(start + end, at + limit)
                        yield Batch(records.slice(at, until), int(offsets[until - 1]) + 1)

    def count(self, selection: Selection) -> int:
        """Return the number of selected records. Raises LakeError."""
        return sum(rows.num_rows for rows in self._chosen(selection))

    def _chosen(self, selection: Selection) -> Iterator[pa.Table]:
        rows_of = self.reader.rows(
            self.replay.topic,
            self.replay.topic_id,
            self.partition,
            selection.start,
            selection.end,
            at_least_ms=selection.from_ms,
        )
        for rows in rows_of:
            chosen = rows.filter(_selected(rows, selection))
            if chosen.num_rows:
                yield chosen

    def _records(self, rows: pa.Table) -> Rows:
        """Return the rows with their origin and without offsets, since the target assigns its own."""
        front = f"{self.replay.replay_id} {self.replay.topic} {self.partition} "
        numbers = column_of(rows, "offset").cast(pa.string())
        origins = pc.binary_join_element_wise(front, numbers, "").cast(pa.binary())
        return evolve(records_of(rows, (ORIGIN.encode(), origins)), offsets=None)


def _selected(rows: pa.Table, selection: Selection) -> pa.Array:
    timestamps = rows["timestamp_ms"].to_numpy()
    chosen = np.ones(rows.num_rows, np.bool_)
    if selection.from_ms is not None:
        chosen &= timestamps >= selection.from_ms
    if selection.until_ms is not None:
        chosen &= timestamps < selection.until_ms
    if selection.key is not None:
        equal = pc.equal(rows["key"], pa.scalar(selection.key, pa.binary()))
        chosen &= pc.fill_null(equal, fill_value=False).to_numpy()
    return pa.array(chosen)


async def target_of(client: Client, replay: Replay, partition: int) -> TopicPartition:
    """Return the target of a partition: the same number, modulo the target's number of partitions."""
    topic = await client.topic(replay.target)
    return TopicPartition(topic.name, partition % len(topic.partitions))


def left_of(position: OffsetAndMetadata | None, selection: Selection) -> Selection:
    """Return what was left of a selection at a checkpoint of the replay's group."""
    if position is None:
        return selection
    start, end = json.loads(position.metadata)
    return evolve(selection, start=start, end=end)


def _checkpoint(offset: int, left: Selection) -> OffsetAndMetadata:
    """Return an offset to commit, from which to search the target, with what is left as its metadata."""
    return OffsetAndMetadata(offset, metadata=json.dumps([left.start, left.end]))


@define
class Target:
    """The partition that records go to, and the progress."""

    replay: Replay
    partition: int
    source: ArchivedRecords
    sent: int = field(default=0, init=False)
    _leader_id: int = field(default=-1, init=False)  # -1: metadata must be requested
    # The offset in the target from which a later run has to search.
    _known: int = field(default=0, init=False)

    async def send_all(self, selection: Selection) -> None:
        """Send the selected records that the target does not have yet. Raises KafkaError, LakeError."""
        async with self.replay.client() as client:
            tp = await target_of(client, self.replay, self.partition)
            if self.replay.transactional:
                await self._send_in_transactions(client, tp, selection)
                return
            selection = await self._resumed(client, tp, selection)
            async with client.producer() as producer:
                await self._send_selected(client, producer, tp, selection)
            offsets = await client.list_offsets({tp: LATEST})
            await self._checkpoint(client, tp, offsets[tp].offset, evolve(selection, start=selection.end))

    async def _send_in_transactions(self, client: Client, tp: TopicPartition, selection: Selection) -> None:
        """Send the selected records in transactions, each of which commits a checkpoint."""
        began = time.monotonic()
        # An empty transaction fences another run of this replay, whose checkpoint is therefore the last one.
        async with client.transaction(self.replay.group_id(self.partition)) as transaction:
            left = await self._resumed(client, tp, selection)
        batches = self.source.batches(left)
        while left.start < left.end:
            sent = self.sent
            try:
                async with client.transaction(transaction.transactional_id, after=transaction) as transaction:
                    left = await self._send_some(client, transaction, tp, batches, left)
            except BaseException:
                self.sent = sent  # the transaction is aborted
                raise
            await self._keep_to_rate(began)

    async def _send_some(
        self,
        client: Client,
        transaction: Transaction,
        tp: TopicPartition,
        batches: Iterator[Batch],
        left: Selection,
    ) -> Selection:
        """Send as many batches as belong between two checkpoints, and stage the checkpoint. Return what is left."""
        until = time.monotonic() + CHECKPOINT_S
        await transaction.add([tp])
        for _ in range(BATCHES_A_CHECKPOINT):
            batch = next(batches, None)
            if batch is None:
                left = evolve(left, start=left.end)
                break
            self._known = max(self._known, await self._send(client, transaction, tp, batch))
            left = evolve(left, start=batch.next_offset)
            if self.replay.rate > 0 or time.monotonic() > until:
                break
        await transaction.commit_offsets(transaction.transactional_id, {tp: _checkpoint(self._known, left)})
        return left

    async def _send_selected(
        self, client: Client, producer: Producer, tp: TopicPartition, selection: Selection
    ) -> None:
        """Send the selected records, with a checkpoint now and then."""
        began = saved = time.monotonic()
        for number, batch in enumerate(self.source.batches(selection), 1):
            offset = await self._send(client, producer, tp, batch)
            due = number % BATCHES_A_CHECKPOINT == 0 or time.monotonic() - saved > CHECKPOINT_S
            if due and offset >= 0:
                saved = time.monotonic()
                left = evolve(selection, start=batch.next_offset)
                await self._checkpoint(client, tp, offset, left)
            await self._keep_to_rate(began)

    async def _resumed(self, client: Client, tp: TopicPartition, selection: Selection) -> Selection:
        """Return what is left of the selection: the offsets after the last record that is in the target."""
        self._known = latest = (await client.list_offsets({tp: LATEST}))[tp].offset
        # Stable: after the transactions of earlier runs have ended.
        found = await client.committed(self.replay.group_id(self.partition), [tp], require_stable=True)
        position = found.get(tp)
        if position is None:
            await self._checkpoint(client, tp, latest, selection)
            return selection
        self._known = position.offset
        left = left_of(position, selection)
        start, end = left.start, left.end
        prefix = f"{self.replay.replay_id} {self.replay.topic} {self.partition} ".encode()
        if position.offset < latest:
            # Records of an aborted transaction were not sent.
            sent = client.consume({tp: position.offset}, until={tp: latest}, isolation_level=READ_COMMITTED)
            async for record in sent:
                for name, value in record.headers:
                    if name == ORIGIN and value is not None and value.startswith(prefix):
                        start = max(start, int(value.removeprefix(prefix)) + 1)
        return evolve(selection, start=min(start, end), end=end)

    async def _checkpoint(self, client: Client, tp: TopicPartition, offset: int, left: Selection) -> None:
        """Commit the target's end offset, with what is left as metadata; see `left_of`."""
        await client.commit(self.replay.group_id(self.partition), {tp: _checkpoint(offset, left)})

    async def _send(self, client: Client, producer: Producer, tp: TopicPartition, batch: Batch) -> int:
        """Store a batch once. Return its offset in the target, or -1 if an earlier attempt had stored it."""
        data = encode_batch(batch.rows, producing=producer.next(tp))
        request = ProduceRequest(
            transactional_id=producer.transactional_id if isinstance(producer, Transaction) else None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                TopicProduceData(
                    name=tp.topic,
                    partition_data=[PartitionProduceData(index=tp.partition, records=[data])],
                )
            ],
        )

        async def attempt() -> int:
            leader_id, self._leader_id = self._leader_id, -1
            if leader_id < 0:
                leader_id = (await client.topic(tp.topic)).partitions[tp.partition].leader_id
            if leader_id not in client.brokers:
                raise NotLeaderOrFollower(f"{tp} has no leader at the moment")
            answer = await client.request(request, ProduceResponse, node_id=leader_id, max_version=PRODUCE)
            (partition,) = answer.responses[0].partition_responses
            if partition.error_code == DuplicateSequenceNumber.error_code:
                return -1
            if partition.error_code:
                raise error_about(partition.error_code, tp, partition.error_message)
            self._leader_id = leader_id
            return int(partition.base_offset)

        base_offset = await client.retrying(attempt)
        producer.acknowledged(tp, len(batch.rows))
        self.sent += len(batch.rows)
        return base_offset

    async def _keep_to_rate(self, began: float) -> None:
        if self.replay.rate > 0:
            await trio.sleep(max(0.0, began + self.sent / self.replay.rate - time.monotonic()))
