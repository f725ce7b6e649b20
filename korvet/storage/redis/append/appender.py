"""Append batches: pack them, submit them to their partitions' queues, and wait for the results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from attrs import define, field, frozen

from korvet.concurrency.time_slices import TimeSlices, run_in_slices
from korvet.protocol.errors import KafkaError, MessageTooLarge, RequestTimedOut, detached
from korvet.protocol.record_batch import CODEC_BITS, RecordBatch
from korvet.protocol.steps import RECORDS_A_STEP, at_once
from korvet.storage.failed_sequences import ProducerBatch
from korvet.storage.interface import (
    NO_TRANSACTIONS,
    AppendResults,
    Marker,
    PendingAppend,
    TopicPartition,
    TransactionNumber,
    Transactions,
)
from korvet.storage.redis.append.layouts import Packed, Packing, pack_marker
from korvet.storage.redis.append.queue import AppendContext, AppendQueue, Submission, Ticket, too_few_replicas
from korvet.storage.redis.client.connection import NotConnected
from korvet.storage.redis.partition import Partition
from korvet.storage.redis.time_limits import TimeLimits

# Bytes by which the batches of a request may grow when they are packed; further batches are refused.
GROWN_BYTES = 16 * 1024 * 1024

# A client's own time-out (`timeout_ms`) limits only the wait for replicas, as in Kafka. This many seconds limit the
# append itself: fewer than the 30 s after which clients, by default, give up a connection that does not answer.
APPEND_LIMIT_S = 25.0

# Failures of markers do not hold back batches of their producers.
NO_PRODUCER = ProducerBatch(-1, -1, -1)


@define(eq=False)
class Appender:
    """Implements `Storage.append`; owns the queues of partitions with unfinished appends."""

    context: AppendContext
    time_limits: TimeLimits
    _queues: dict[Partition, AppendQueue] = field(factory=dict)

    async def begin(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        *,
        acks: int,
        timeout_s: float,
        transactions: Transactions = NO_TRANSACTIONS,
    ) -> AppendResults | PendingAppend:
        """See `Storage.begin_append`."""
        limit_s = max(APPEND_LIMIT_S, timeout_s)
        submission = Submission(limit_s, timeout_s, self.context.failed)
        return await self._submit(self._tickets(batches, submission, acks, transactions), submission, limit_s)

    def begin_now(
        self, batches: Mapping[TopicPartition, RecordBatch], *, acks: int, timeout_s: float
    ) -> PendingAppend | None:
        """See `Storage.try_append`: batches that are packed in one step, and that no replica has to confirm."""
        context = self.context
        redis, partitions = context.redis, context.partitions
        submission = Submission(max(APPEND_LIMIT_S, timeout_s), timeout_s, context.failed)
        tickets = []
        for tp, batch in batches.items():
            partition = partitions.known(tp)
            if partition is None:
                return None
            stream, config = partition.keys.stream, partition.shared.topic.config
            if (
                context.waits_for_replicas(acks, config)
                or context.refusal(stream) is not None
                or not redis.is_connected(stream)
            ):
                return None
            try:
                packed = self._pack(partition, batch, None)
                if not isinstance(packed, Packed):
                    if batch.attributes & CODEC_BITS or batch.record_count > RECORDS_A_STEP:
                        return None
                    packed = at_once(packed)
            except KafkaError:
                return None
            tickets.append(
                Ticket(
                    partition, config, packed, ProducerBatch.of(batch), submission, waits_for_replicas=False
                )
            )
        if not tickets:
            return None
        submission.submit(tickets)
        for ticket in tickets:
            self._queue_of(ticket.partition).submit(ticket)
        return SubmittedAppend(self, submission, tickets)

    async def begin_markers(
        self, markers: Mapping[TopicPartition, Marker], *, now_ms: int, timeout_s: float
    ) -> AppendResults | PendingAppend:
        """Begin `Storage.write_markers`. `now_ms` is the timestamp of the markers."""
        limit_s = max(APPEND_LIMIT_S, timeout_s)
        submission = Submission(limit_s, timeout_s, self.context.failed)
        return await self._submit(self._marker_tickets(markers, submission, now_ms), submission, limit_s)

    async def _submit(
        self, packing: Awaitable[Sequence[Ticket]], submission: Submission, limit_s: float
    ) -> AppendResults | PendingAppend:
        """Pack tickets, and submit them to the queues of their partitions."""
        tickets: Sequence[Ticket] = ()
        try:
            tickets = await self._connected(await packing, submission, limit_s)
        except BaseException:
            submission.share.end()
            raise
        if not tickets:
            submission.share.end()
            await trio.lowlevel.checkpoint()
            return submission.results
        submission.submit(tickets)
        for ticket in tickets:
            self._queue_of(ticket.partition).submit(ticket)
        return SubmittedAppend(self, submission, tickets)

    async def _connected(
        self, packed: Sequence[Ticket], submission: Submission, limit_s: float
    ) -> Sequence[Ticket]:
        """Return the tickets whose server is connected in time; resolve the others with an error."""
        redis = self.context.redis
        deadline = trio.current_time() + limit_s
        tickets = []
        for ticket in packed:
            key = ticket.partition.keys.stream
            if redis.is_connected(key) or await redis.is_connected_within(
                key, deadline - trio.current_time()
            ):
                tickets.append(ticket)
            else:
                submission.fail(ticket.partition.tp, ticket.batch, redis.absence())
        return tickets

    async def _tickets(
        self,
        batches: Mapping[TopicPartition, RecordBatch],
        submission: Submission,
        acks: int,
        transactions: Transactions,
    ) -> list[Ticket]:
        """Pack the batches in time slices; return one ticket for each batch that was not refused."""
        tickets = []
        share = submission.share
        grown = 0  # bytes by which packing has enlarged the batches
        time_slices = TimeSlices()
        for tp, batch in batches.items():
            try:
                partition = await self._accepting(tp)
                config = partition.shared.topic.config
                if grown > GROWN_BYTES:
                    raise MessageTooLarge("The records of the request become too large when decompressed.")
                packed = self._pack(partition, batch, transactions.get(tp))
                if not isinstance(packed, Packed):
                    packing = packed
                    if batch.compression:
                        await share.take(0)
                    try:
                        packed = await run_in_slices(packing, time_slices, share)
                        grown += max(packed.size - batch.size, 0) if batch.compression else 0
                    finally:
                        share.hold(grown)
                waits = self.context.waits_for_replicas(acks, config)
                if waits:
                    await self._open_waiting(partition)
                producer_batch = ProducerBatch.of(batch)
                ticket = Ticket(
                    partition, config, packed, producer_batch, submission, waits_for_replicas=waits
                )
            except KafkaError as error:
                submission.fail(tp, ProducerBatch.of(batch), detached(error))
                continue
            tickets.append(ticket)
            await time_slices.next()
        return tickets

    def _pack(
        self, partition: Partition, batch: RecordBatch, transaction: TransactionNumber | None
    ) -> Packed | Packing:
        """Pack a batch, or return the steps of that. Raises the KafkaError that refuses the batch."""
        shared, defaults = partition.shared, self.context.partitions.defaults
        return shared.format.pack(
            batch,
            shared.topic.config,
            defaults.record_max_headers,
            defaults.record_max_batch_records,
            transaction,
        )

    async def _marker_tickets(
        self, markers: Mapping[TopicPartition, Marker], submission: Submission, now_ms: int
    ) -> list[Ticket]:
        """Return one ticket for each marker that was not refused."""
        tickets = []
        time_slices = TimeSlices()
        for tp, marker in markers.items():
            try:
                partition = await self._accepting(tp)
                config = partition.config
                packed = pack_marker(marker, config, now_ms)
                waits = self.context.waits_for_replicas(-1, config)
                if waits:
                    await self._open_waiting(partition)
                tickets.append(
                    Ticket(
                        partition,
                        config,
                        packed,
                        NO_PRODUCER,
                        submission,
                        waits_for_replicas=waits,
                        is_marker=True,
                    )
                )
            except KafkaError as error:
                submission.fail(tp, NO_PRODUCER, detached(error))
            await time_slices.next()
        return tickets

    async def _accepting(self, tp: TopicPartition) -> Partition:
        """Return a partition whose server accepts appends. Raises the KafkaError that refuses them."""
        partition = self.context.partitions.known(tp) or await self.context.partitions.find(tp)
        if (refusal := self.context.refusal(partition.keys.stream)) is not None:
            raise refusal
        return partition

    async def _open_waiting(self, partition: Partition) -> None:
        """Ensure that the partition's server has a connection for appends that wait for replicas."""
        redis = self.context.redis
        try:
            server = redis.server_of(partition.keys.stream)
        except NotConnected as error:
            raise redis.absence() from error
        await server.waiting.open()

    def _queue_of(self, partition: Partition) -> AppendQueue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = AppendQueue(partition, self.context, self._ended)
        return queue

    def _ended(self, partition: Partition) -> None:
        self._queues.pop(partition, None)

    def give_up(self, ticket: Ticket) -> None:
        """Withdraw a batch whose append has timed out or whose caller was cancelled, and resolve it with an error."""
        queue = self._queues.get(ticket.partition)
        if queue is not None:
            queue.withdraw(ticket)
        if ticket.appended is not None:
            ticket.resolve(too_few_replicas(ticket.config.min_insync_replicas - 1))
        else:
            ticket.resolve(RequestTimedOut())


@frozen(eq=False)
class SubmittedAppend(PendingAppend):
    """Batches that were submitted to their partitions' queues."""

    appender: Appender
    submission: Submission
    tickets: Sequence[Ticket]

    async def wait(self) -> AppendResults:
        submission = self.submission
        abandon = self.abandon
        try:
            # The results may have arrived before the call, and the time limit may have passed since.
            if submission.remaining:
                limits = self.appender.time_limits
                # A limit of the wait for replicas is as short as the client wants.
                waits_for_replicas = any(ticket.waits_for_replicas for ticket in self.tickets)
                if not waits_for_replicas and limits.add(abandon, submission.deadline):
                    try:
                        await submission.wait()
                    finally:
                        limits.remove(abandon)
                else:
                    submission.waiting = trio.CancelScope(deadline=submission.deadline)
                    with submission.waiting:
                        await submission.wait()
        finally:
            abandon()
        return submission.results

    def notify(self, call: Callable[[], None]) -> bool:
        submission, limits = self.submission, self.appender.time_limits
        if not submission.remaining:
            return False
        for ticket in self.tickets:
            if ticket.waits_for_replicas:
                return False
        abandon = self.abandon

        def done() -> None:
            limits.remove(abandon)
            call()

        if not limits.add(abandon, submission.deadline):
            return False
        submission.notify = done
        return True

    def known_results(self) -> AppendResults:
        return self.submission.results

    def abandon(self) -> None:
        if self.submission.remaining:
            for ticket in self.tickets:
                self.appender.give_up(ticket)
