"""Transactions of a log: markers, the last stable offset, fences, reads (rules: `korvet.storage.transaction_state`)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
import trio
from attrs import define

from korvet.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
)
from korvet.protocol.record_batch import ControlType, RecordBatch, control_type, decode_records
from korvet.storage.interface import (
    AbortedTransaction,
    ActiveProducer,
    AppendResult,
    AppendResults,
    IsolationLevel,
    Marker,
    ReadResult,
    Storage,
    Topic,
    TopicPartition,
    TransactionBehind,
    TransactionEnded,
    TransactionNumber,
    TransactionResult,
)
from korvet.testing.contract.appending import log_append_time_topic
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import (
    UNLIMITED,
    Producer,
    Record,
    append,
    batch,
    batches_of,
    consumed,
    numbered,
    read,
    records_from,
    records_in,
    records_of,
    results_of,
)
from korvet.tiered.log import Tiers

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT
# An id that a store assigns long after the tests, so that it cannot have expired. Ids like 7 are older than any store.
YOUNG = 2**52


@define
class Client:
    """A transactional producer of one partition: it counts its sequences, and leaves nothing else out."""

    storage: Storage
    tp: TopicPartition
    producer_id: int = 7
    epoch: int = 0
    number: int = 1
    version: int = 1
    sequence: int = 0

    def batch(self, records: Sequence[Record]) -> RecordBatch:
        producer = Producer(self.producer_id, self.epoch, self.sequence)
        return batch(records, producer=producer, is_transactional=True)

    async def send(self, *values: bytes) -> AppendResult:
        """Append a batch with these values to the transaction. Raises the partition's error."""
        return await self.send_records([Record(value) for value in values])

    async def send_keyed(self, key: bytes, value: bytes) -> AppendResult:
        """Append one record with a key to the transaction. Raises the partition's error."""
        return await self.send_records([Record(value, key)])

    async def send_records(self, records: Sequence[Record]) -> AppendResult:
        """Append a batch of these records to the transaction. Raises the partition's error."""
        transactions = {self.tp: TransactionNumber(self.version, self.number)}
        results = await self.storage.append({self.tp: self.batch(records)}, transactions=transactions)
        result = the_result(results)
        self.sequence += len(records)
        return result

    async def end(self, result: TransactionResult, *, coordinator_epoch: int = 0) -> AppendResult:
        """End the transaction, and go on with the next number."""
        if self.version >= 2:
            self.epoch, self.sequence = self.epoch + 1, 0
        marker = Marker(self.producer_id, self.epoch, coordinator_epoch, result, self.number, self.version)
        written = await write(self.storage, self.tp, marker)
        self.number += 1
        return written


async def write(storage: Storage, tp: TopicPartition, marker: Marker) -> AppendResult:
    """Write one marker. Raises the partition's error."""
    return the_result(await storage.write_markers({tp: marker}))


def the_result(results: AppendResults) -> AppendResult:
    (result,) = results.values()
    if isinstance(result, KafkaError):
        raise result
    return result


async def read_committed(
    storage: Storage | Tiers, tp: TopicPartition, offset: int, *, max_bytes: int = UNLIMITED
) -> ReadResult:
    return await read(storage, tp, offset, max_bytes=max_bytes, isolation_level=IsolationLevel.READ_COMMITTED)


def committed_in(result: ReadResult, offset: int) -> list[bytes | None]:
    """Return the values that a consumer with `read_committed` passes on, by the rules of Kafka's clients."""
    return [each.value for each in records_in(consumed(batches_of(result), result.aborted), offset)]


async def committed_values(
    storage: Storage, tp: TopicPartition, offset: int | None = None, *, max_bytes: int = UNLIMITED
) -> list[bytes | None]:
    """Return the values that a consumer with `read_committed` gets from `offset`, or the log's start, on."""
    level = IsolationLevel.READ_COMMITTED
    return [
        each.value
        for each in await records_from(storage, tp, offset, max_bytes=max_bytes, isolation_level=level)
    ]


async def all_values(storage: Storage, tp: TopicPartition) -> list[bytes | None]:
    return [record.value for record in await records_from(storage, tp)]


class TransactionContract(Contract):
    """The part of the suite for stores that serve transactions, to inherit beside `StorageContract`."""

    @pytest.fixture
    def client(self, storage: Storage, tp: TopicPartition) -> Client:
        return Client(storage, tp)

    # --- Reading ----------------------------------------------------------------------------------------

    async def test_last_stable_offset_is_the_first_of_the_open_transaction(
        self, storage: Storage, client: Client
    ) -> None:
        before = await append(storage, client.tp, numbered(2))
        first = await client.send(b"a", b"b")
        await client.send(b"c")
        bounds = await storage.latest(client.tp)
        result = await read_committed(storage, client.tp, before.base_offset)

        assert first.base_offset == bounds.last_stable_offset == result.offsets.last_stable_offset
        assert bounds.high_watermark == result.offsets.high_watermark >= first.base_offset + 3
        assert [b"0", b"1"] == [record.value for record in records_of(result, before.base_offset)]
        assert not result.is_cut
        assert [b"0", b"1", b"a", b"b", b"c"] == await all_values(storage, client.tp)

    async def test_commit_makes_the_records_readable(self, storage: Storage, client: Client) -> None:
        first = await client.send(b"a", b"b")
        marker = await client.end(COMMIT)
        bounds = await storage.latest(client.tp)
        result = await read_committed(storage, client.tp, first.base_offset)

        assert first.base_offset + 2 <= marker.base_offset
        assert marker.base_offset + 1 <= bounds.high_watermark == bounds.last_stable_offset
        assert [] == list(result.aborted)
        assert (
            [b"a", b"b"] == await committed_values(storage, client.tp) == await all_values(storage, client.tp)
        )

    async def test_aborted_records_are_listed(self, storage: Storage, client: Client) -> None:
        first = await client.send(b"a", b"b")
        await client.end(ABORT)
        await client.send(b"c")
        await client.end(COMMIT)
        result = await read_committed(storage, client.tp, first.base_offset)

        assert [AbortedTransaction(7, first.base_offset)] == list(result.aborted)
        assert [b"c"] == await committed_values(storage, client.tp)
        assert [b"a", b"b", b"c"] == await all_values(storage, client.tp)

    async def test_uncommitted_read_lists_no_aborted_transactions(
        self, storage: Storage, client: Client
    ) -> None:
        first = await client.send(b"a")
        await client.end(ABORT)

        assert [] == list((await read(storage, client.tp, first.base_offset)).aborted)

    @pytest.mark.parametrize("kind", ControlType)
    async def test_marker_is_a_control_batch(
        self, storage: Storage, client: Client, kind: ControlType
    ) -> None:
        await client.send(b"a")
        written = await client.end(TransactionResult(kind), coordinator_epoch=3)
        (marker,) = batches_of(await read(storage, client.tp, written.base_offset))
        ((_, timestamp, key, value, headers),) = decode_records(marker)

        assert kind is control_type(marker)
        assert marker.is_transactional
        assert marker.is_control
        assert (7, 0, -1, 1) == (
            marker.producer_id,
            marker.producer_epoch,
            marker.base_sequence,
            marker.record_count,
        )
        assert (b"\0\0\0" + bytes([kind]), b"\0\0\0\0\0\3", ()) == (key, value, headers)
        assert timestamp == marker.base_timestamp == marker.max_timestamp > 0
        assert written.base_offset == marker.base_offset == marker.last_offset

    async def test_records_keep_their_transactional_header(self, storage: Storage, client: Client) -> None:
        first = await client.send(b"a", b"b")
        plain = await append(storage, client.tp, [Record(b"p")], producer=Producer(9))
        batches = batches_of(await read(storage, client.tp, first.base_offset))

        assert [(True, False, 7), (False, False, 9)] == [
            (each.is_transactional, each.is_control, each.producer_id) for each in batches
        ]
        assert plain.base_offset == batches[-1].base_offset

    async def test_oldest_open_transaction_holds_back_later_ones(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        old, new = Client(storage, tp), Client(storage, tp, 8)
        first = await old.send(b"a")
        second = await new.send(b"b")
        await new.end(COMMIT)
        plain = await append(storage, tp, [Record(b"p")])
        stable = [(await storage.latest(tp)).last_stable_offset]
        third = await new.send(b"c")
        await old.end(ABORT)
        stable.append((await storage.latest(tp)).last_stable_offset)

        assert [first.base_offset, third.base_offset] == stable
        assert second.base_offset < plain.base_offset < third.base_offset
        assert [b"b", b"p"] == await committed_values(storage, tp)
        await new.end(COMMIT)
        assert [b"b", b"p", b"c"] == await committed_values(storage, tp)

    @pytest.mark.parametrize("max_bytes", [1, 200, UNLIMITED])
    async def test_interleaved_transactions_are_read_in_parts_of_any_size(
        self, storage: Storage, tp: TopicPartition, max_bytes: int
    ) -> None:
        clients = [Client(storage, tp, producer_id) for producer_id in (7, 8, 9)]
        expected: list[bytes] = []
        for step in range(8):
            result = ABORT if step % 3 == 0 else COMMIT
            for client in clients[step % 2 :]:
                value = b"%d-%d" % (client.producer_id, step)
                await client.send(value, value)
                expected += [value, value] if result is COMMIT else []
            await append(storage, tp, [Record(b"p%d" % step)])
            expected.append(b"p%d" % step)
            for client in clients[step % 2 :]:
                await client.end(result)

        assert expected == await committed_values(storage, tp, max_bytes=max_bytes)
        seen = await records_from(storage, tp)
        for at in range(0, len(seen), 5):
            rest = await committed_values(storage, tp, seen[at].offset, max_bytes=max_bytes)
            left = {record.value for record in seen[at:]}
            assert [value for value in expected if value in left][-len(rest) :] == rest
            assert {value for value in expected if value in left} == set(rest)

    async def test_aborted_transactions_outside_of_the_data_are_not_listed(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        firsts = []
        client = Client(storage, tp)
        for number in range(5):
            firsts.append((await client.send(b"%d" % number)).base_offset)
            await client.end(ABORT)
        result = await read_committed(storage, tp, firsts[2], max_bytes=1)

        assert [firsts[2]] == [batches_of(result)[0].base_offset]
        assert [AbortedTransaction(7, firsts[2])] == list(result.aborted)

    async def test_long_aborted_transaction_is_listed_in_each_part(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        long, short = Client(storage, tp), Client(storage, tp, 8)
        first = await long.send(b"a")
        for _ in range(100):
            await short.send(b"b")
            await short.end(ABORT)
        last = await long.send(b"c")
        await long.end(ABORT)
        result = await read_committed(storage, tp, last.base_offset, max_bytes=1)

        assert [AbortedTransaction(7, first.base_offset)] == list(result.aborted)
        assert [] == await committed_values(storage, tp, max_bytes=1)
        result = await read_committed(storage, tp, first.base_offset)
        assert {each.producer_id for each in result.aborted} == {7, 8}
        assert 101 == len(result.aborted)

    async def test_open_transaction_at_the_log_start_leaves_nothing_to_read(
        self, storage: Storage, client: Client
    ) -> None:
        first = await client.send(b"a")
        result = await read_committed(storage, client.tp, first.base_offset)

        assert ([], False) == (batches_of(result), result.is_cut)
        high_watermark = (await storage.latest(client.tp)).high_watermark
        assert [] == batches_of(await read_committed(storage, client.tp, high_watermark))

    async def test_other_partitions_stay_stable(self, storage: Storage, client: Client) -> None:
        other = TopicPartition(client.tp.topic, 1)
        await client.send(b"a")
        await append(storage, other, numbered(1))
        bounds = await storage.latest(other)

        assert bounds.high_watermark == bounds.last_stable_offset
        assert [b"0"] == await committed_values(storage, other)

    async def test_watch_is_notified_of_markers(self, storage: Storage, client: Client) -> None:
        await client.send(b"a")
        with storage.watch([client.tp]) as watch:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.end, COMMIT)
                with trio.fail_after(5):
                    assert [client.tp] == list(await watch.wait())

    async def test_another_broker_sees_the_same(self, client: Client, environment: Environment) -> None:
        async with environment.open() as other:
            first = await client.send(b"a")
            assert first.base_offset == (await other.latest(client.tp)).last_stable_offset
            with pytest.raises(InvalidTxnState):
                await append(other, client.tp, numbered(1), producer=Producer(7, sequence=1))
            await client.end(ABORT)

            assert [AbortedTransaction(7, first.base_offset)] == list(
                (await read_committed(other, client.tp, first.base_offset)).aborted
            )

    async def test_log_append_time_applies_to_markers(
        self, storage: Storage, environment: Environment
    ) -> None:
        client = Client(storage, await log_append_time_topic(storage, environment))
        first = await client.send(b"a")
        written = await client.end(COMMIT)
        data, marker = batches_of(await read(storage, client.tp, first.base_offset))

        assert (True, True) == (data.is_log_append_time, marker.is_log_append_time)
        assert written.log_append_time_ms == marker.max_timestamp >= data.max_timestamp

    # --- Batches ----------------------------------------------------------------------------------------

    async def test_repeated_batch_of_a_transaction_is_a_duplicate(
        self, storage: Storage, client: Client
    ) -> None:
        first = await client.send(b"a")
        client.sequence = 0
        again = await client.send(b"a")
        await client.end(COMMIT)
        client.sequence, client.number = 0, 1
        after = await client.send(b"a")

        assert [first.base_offset] * 2 == [again.base_offset, after.base_offset]
        assert (True, True) == (again.duplicate, after.duplicate)
        assert [b"a"] == await committed_values(storage, client.tp)

    async def test_late_batch_of_an_ended_transaction_is_refused(
        self, storage: Storage, client: Client
    ) -> None:
        await client.send(b"a")
        await client.end(COMMIT)
        client.number = 1
        with pytest.raises(TransactionEnded):
            await client.send(b"b")

        client.number = 2
        await client.send(b"c")
        with pytest.raises(TransactionEnded):
            await Client(storage, client.tp, sequence=2).send(b"d")
        await client.end(COMMIT)
        assert [b"a", b"c"] == await committed_values(storage, client.tp)

    async def test_batch_behind_an_open_transaction_is_refused(
        self, storage: Storage, client: Client
    ) -> None:
        await client.send(b"a")
        client.number = 2
        with pytest.raises(TransactionBehind):
            await client.send(b"b")

        await write(storage, client.tp, Marker(7, 0, 0, ABORT, 1))
        await client.send(b"b")
        await client.end(COMMIT)
        assert [b"b"] == await committed_values(storage, client.tp)

    async def test_late_first_batch_is_refused_after_the_marker(
        self, storage: Storage, client: Client
    ) -> None:
        marker = await client.end(ABORT)
        client.number = 1
        with pytest.raises(TransactionEnded):
            await client.send(b"a")

        bounds = await storage.latest(client.tp)
        assert marker.base_offset + 1 <= bounds.high_watermark == bounds.last_stable_offset
        assert [] == await all_values(storage, client.tp)

    async def test_second_version_begins_each_transaction_with_sequence_zero(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        client = Client(storage, tp, version=2, sequence=5)
        with pytest.raises(OutOfOrderSequenceNumber):
            await client.send(b"a")

        client.sequence = 0
        await client.send(b"a")
        await client.send(b"b")
        await client.end(COMMIT)
        client.sequence = 2
        with pytest.raises(OutOfOrderSequenceNumber):
            await client.send(b"c")
        client.sequence = 0
        await client.send(b"c")
        await client.end(COMMIT)
        assert [b"a", b"b", b"c"] == await committed_values(storage, tp)

    async def test_second_version_fences_late_batches_by_epoch(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        client = Client(storage, tp, version=2)
        await client.send(b"a")
        await client.end(COMMIT)
        client.epoch, client.sequence = 0, 1
        with pytest.raises(InvalidProducerEpoch):
            await client.send(b"b")

        assert [b"a"] == await all_values(storage, tp)

    async def test_marker_without_records_fences_by_epoch(self, storage: Storage, tp: TopicPartition) -> None:
        await write(storage, tp, Marker(YOUNG, 3, 0, ABORT, 1, 2))
        for late in (Client(storage, tp, YOUNG, 2, 1, 2), Client(storage, tp, YOUNG, 2, 5, 2)):
            with pytest.raises(InvalidProducerEpoch):
                await late.send(b"a")
        with pytest.raises(InvalidProducerEpoch):
            await append(storage, tp, numbered(1), producer=Producer(YOUNG, 2))

        await Client(storage, tp, YOUNG, 3, 2, 2).send(b"b")
        assert [b"b"] == await all_values(storage, tp)

    async def test_first_version_goes_on_with_its_sequences(self, storage: Storage, client: Client) -> None:
        await client.send(b"a", b"b")
        await client.end(COMMIT)
        client.sequence = 0
        with pytest.raises(OutOfOrderSequenceNumber):
            await client.send(b"c")

        client.sequence = 2
        await client.send(b"c")
        await client.end(COMMIT)
        assert [b"a", b"b", b"c"] == await committed_values(storage, client.tp)

    async def test_plain_batch_of_the_producer_is_refused_while_its_transaction_is_open(
        self, storage: Storage, client: Client
    ) -> None:
        await client.send(b"a")
        plain = Producer(7, sequence=1)
        with pytest.raises(InvalidTxnState):
            await append(storage, client.tp, numbered(1), producer=plain)
        await append(storage, client.tp, [Record(b"other")], producer=Producer(8))

        await client.end(ABORT)
        await append(storage, client.tp, numbered(1), producer=plain)
        assert [b"other", b"0"] == await committed_values(storage, client.tp)

    async def test_batches_in_flight_are_checked_one_after_the_other(
        self, storage: Storage, client: Client
    ) -> None:
        transactions = {client.tp: TransactionNumber(1, 1)}
        batches = []
        for number in range(4):
            client.sequence = number
            batches.append(client.batch([Record(b"%d" % number)]))
        begun = [await storage.begin_append({client.tp: each}, transactions=transactions) for each in batches]
        results = [the_result(await results_of(each)) for each in begun]

        assert sorted(each.base_offset for each in results) == [each.base_offset for each in results]
        assert results[0].base_offset == (await storage.latest(client.tp)).last_stable_offset
        await client.end(COMMIT)
        assert [b"0", b"1", b"2", b"3"] == await committed_values(storage, client.tp)

    async def test_batch_in_flight_does_not_overtake_one_whose_transaction_has_ended(
        self, storage: Storage, client: Client
    ) -> None:
        """The broker looks at the coordinator's document, and appends the first one once more."""
        await client.end(COMMIT)  # without records, so the sequence that comes next is not known
        first = client.batch([Record(b"a")])
        second = batch([Record(b"b")], producer=Producer(7, 0, 1), is_transactional=True)
        sent = [
            await storage.begin_append({client.tp: each}, transactions={client.tp: TransactionNumber(1, n)})
            for each, n in ((first, 1), (second, 2))
        ]
        results = [(await results_of(each))[client.tp] for each in sent]

        assert [TransactionEnded] * 2 == [type(each) for each in results]
        await client.send(b"a")
        await client.send(b"b")
        await client.end(COMMIT)
        assert [b"a", b"b"] == await committed_values(storage, client.tp)

    async def test_transactions_of_two_producers_may_begin_in_one_call(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        clients = [Client(storage, tp, producer_id) for producer_id in (7, 8, 9)]
        transactions = {tp: TransactionNumber(1, 1)}
        plain = await storage.begin_append({tp: batch([Record(b"p")])})
        begun = [
            await storage.begin_append({tp: each.batch([Record(b"x")])}, transactions=transactions)
            for each in clients
        ]
        await results_of(plain)
        firsts = [the_result(await results_of(each)).base_offset for each in begun]
        for client, next_first in zip(clients, [*firsts[1:], None], strict=True):
            await client.end(COMMIT)
            bounds = await storage.latest(tp)
            assert bounds.last_stable_offset == (next_first or bounds.high_watermark)

    # --- Markers ----------------------------------------------------------------------------------------

    async def test_repeated_marker_writes_nothing(self, storage: Storage, client: Client) -> None:
        await client.send(b"a")
        written = await client.end(ABORT)
        end = (await storage.latest(client.tp)).high_watermark
        for result in (ABORT, COMMIT):
            again = await write(storage, client.tp, Marker(7, 0, 0, result, 1))
            assert (end, True) == (again.base_offset, again.duplicate)

        await client.send(b"b")
        late = await write(storage, client.tp, Marker(7, 0, 0, COMMIT, 1))
        bounds = await storage.latest(client.tp)
        assert late.duplicate
        assert bounds.last_stable_offset > written.base_offset
        assert bounds.last_stable_offset < bounds.high_watermark

    async def test_marker_with_a_lower_epoch_is_refused(self, storage: Storage, client: Client) -> None:
        client.epoch = 2
        await client.send(b"a")
        with pytest.raises(InvalidProducerEpoch):
            await write(storage, client.tp, Marker(7, 1, 0, ABORT, 1))

        await write(storage, client.tp, Marker(7, 3, 0, ABORT, 1))
        with pytest.raises(InvalidProducerEpoch):
            await write(storage, client.tp, Marker(7, 2, 0, ABORT, 2))
        assert [] == await committed_values(storage, client.tp)

    async def test_marker_of_an_earlier_coordinator_is_refused(
        self, storage: Storage, client: Client
    ) -> None:
        await client.send(b"a")
        await client.end(COMMIT, coordinator_epoch=2)
        await client.send(b"b")
        with pytest.raises(TransactionCoordinatorFenced):
            await write(storage, client.tp, Marker(7, 0, 1, ABORT, 2))

        await client.end(COMMIT, coordinator_epoch=2)
        assert [b"a", b"b"] == await committed_values(storage, client.tp)

    async def test_marker_of_a_later_transaction_does_not_end_an_earlier_one(
        self, storage: Storage, client: Client
    ) -> None:
        await client.send(b"a")
        with pytest.raises(TransactionBehind):
            await write(storage, client.tp, Marker(7, 0, 0, COMMIT, 2))

        await write(storage, client.tp, Marker(7, 0, 0, ABORT))
        await write(storage, client.tp, Marker(7, 0, 0, COMMIT, 2))
        assert [] == await committed_values(storage, client.tp)

    async def test_marker_without_number_ends_the_open_transaction(
        self, storage: Storage, client: Client
    ) -> None:
        await client.send(b"a")
        await write(storage, client.tp, Marker(7, 0, 5, ABORT))
        with pytest.raises(TransactionEnded):
            await client.send(b"b")

        again = await write(storage, client.tp, Marker(7, 0, 5, ABORT))
        assert not again.duplicate
        assert (await client.end(COMMIT, coordinator_epoch=5)).duplicate
        assert [] == await committed_values(storage, client.tp)

    async def test_marker_without_number_needs_a_higher_epoch_in_the_second_version(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        client = Client(storage, tp, version=2)
        await client.send(b"a")
        with pytest.raises(InvalidProducerEpoch):
            await write(storage, tp, Marker(7, 0, 0, ABORT, -1, 2))

        first = await write(storage, tp, Marker(7, 1, 0, ABORT, -1, 2))
        second = await write(storage, tp, Marker(7, 1, 0, ABORT, -1, 2))
        assert first.base_offset < second.base_offset
        assert [] == await committed_values(storage, tp)

    async def test_marker_for_an_unknown_partition_is_refused(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        markers = {
            each: Marker(7, 0, 0, COMMIT, 1)
            for each in (TopicPartition("missing", 0), TopicPartition(tp.topic, 9), tp)
        }
        results = await storage.write_markers(markers)

        assert [UnknownTopicOrPartition, UnknownTopicOrPartition, AppendResult] == list(
            map(type, results.values())
        )

    async def test_markers_of_several_partitions_are_written_together(
        self, storage: Storage, topic: Topic
    ) -> None:
        tps = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        for tp in tps:
            await Client(storage, tp).send(b"a")
        results = await storage.write_markers(dict.fromkeys(tps, Marker(7, 0, 0, COMMIT, 1)))

        assert set(tps) == set(results)
        for tp in tps:
            assert [b"a"] == await committed_values(storage, tp)

    # --- Producers --------------------------------------------------------------------------------------

    async def test_active_producers_are_listed(self, storage: Storage, tp: TopicPartition) -> None:
        assert [] == list(await storage.active_producers(tp))
        open_, ended = Client(storage, tp, 7, 2), Client(storage, tp, 8, version=2)
        first = await open_.send(b"a", b"b")
        await ended.send(b"c")
        await ended.end(COMMIT, coordinator_epoch=4)
        await append(storage, tp, numbered(3), producer=Producer(9))
        found = {each.producer_id: each for each in await storage.active_producers(tp)}

        assert [7, 8, 9] == sorted(found)
        assert all(each.last_timestamp > 0 for each in found.values())
        times = {each.producer_id: each.last_timestamp for each in found.values()}
        assert ActiveProducer(7, 2, 1, times[7], -1, first.base_offset) == found[7]
        assert ActiveProducer(8, 1, -1, times[8], 4, -1) == found[8]
        assert ActiveProducer(9, 0, 2, times[9], -1, -1) == found[9]

    async def test_active_producers_of_an_unknown_partition(self, storage: Storage) -> None:
        with pytest.raises(UnknownTopicOrPartition):
            await storage.active_producers(TopicPartition("missing", 0))

    # --- Deleting ---------------------------------------------------------------------------------------

    async def test_deleted_records_of_an_open_transaction_leave_it_open(
        self, storage: Storage, client: Client
    ) -> None:
        await client.send(b"a")
        second = await client.send(b"b")
        third = await client.send(b"c")
        await storage.truncate_before(client.tp, second.base_offset)
        stable = [(await storage.latest(client.tp)).last_stable_offset]
        await storage.truncate_before(client.tp, third.base_offset)
        stable.append((await storage.latest(client.tp)).last_stable_offset)
        assert [second.base_offset, third.base_offset] == stable
        assert [] == await committed_values(storage, client.tp)

        await client.send(b"d")
        await client.end(ABORT)
        await client.send(b"e")
        await client.end(COMMIT)
        assert [b"e"] == await committed_values(storage, client.tp)

    async def test_aborted_transactions_below_the_log_start_are_forgotten(
        self, storage: Storage, client: Client
    ) -> None:
        await client.send(b"a")
        marker = await client.end(ABORT)
        last = await client.send(b"b")
        await client.end(COMMIT)
        await storage.truncate_before(client.tp, marker.base_offset + 1)
        result = await read_committed(storage, client.tp, last.base_offset)

        assert [] == list(result.aborted)
        assert [b"b"] == await committed_values(storage, client.tp)

    async def test_new_topic_of_the_same_name_has_no_transactions(
        self, storage: Storage, topic: Topic, client: Client, environment: Environment
    ) -> None:
        await client.send(b"a")
        await storage.delete_topic(topic)
        await storage.create_topic(topic.name, 3, environment.settings)
        bounds = await storage.latest(client.tp)
        assert bounds.last_stable_offset == bounds.high_watermark

        await append(storage, client.tp, numbered(1), producer=Producer(7))
        await Client(storage, client.tp, sequence=1).send(b"b")
        assert [b"0"] == await committed_values(storage, client.tp)

    # --- Compaction -------------------------------------------------------------------------------------

    @pytest.fixture
    async def on_compacted(self, storage: Storage, environment: Environment) -> Client:
        """Return a client of a partition that every call compacts if it has new records."""
        return Client(storage, await compacted_topic(storage, environment))

    async def test_compaction_ends_at_the_last_stable_offset(
        self, storage: Storage, on_compacted: Client
    ) -> None:
        tp = on_compacted.tp
        for number in range(3):
            await append(storage, tp, [Record(b"%d" % number, b"k")])
        first = await on_compacted.send_keyed(b"k", b"open")
        await append(storage, tp, [Record(b"later", b"k")])
        result = await storage.compact(tp)

        assert result is not None
        assert result.end == first.base_offset
        assert [b"2", b"open", b"later"] == await all_values(storage, tp)
        await on_compacted.end(COMMIT)
        await storage.compact(tp)
        assert [b"later"] == await committed_values(storage, tp) == await all_values(storage, tp)

    async def test_open_transaction_at_the_start_leaves_nothing_to_compact(
        self, storage: Storage, on_compacted: Client
    ) -> None:
        await on_compacted.send_keyed(b"k", b"open")
        await on_compacted.send_keyed(b"k", b"again")

        assert await storage.compact(on_compacted.tp) is None
        assert [b"open", b"again"] == await all_values(storage, on_compacted.tp)

    async def test_compaction_drops_aborted_records_which_supersede_none(
        self, storage: Storage, on_compacted: Client
    ) -> None:
        tp = on_compacted.tp
        start = (await append(storage, tp, [Record(b"plain", b"a"), Record(b"old", b"b")])).base_offset
        await on_compacted.send_keyed(b"a", b"aborted")
        await on_compacted.end(ABORT)
        await on_compacted.send_keyed(b"b", b"committed")
        await on_compacted.end(COMMIT)
        await append(storage, tp, [Record(b"last", b"c")])
        bounds = await storage.latest(tp)
        await storage.compact(tp)

        assert [b"plain", b"committed", b"last"] == await all_values(storage, tp)
        assert [b"plain", b"committed", b"last"] == await committed_values(storage, tp)
        assert bounds == await storage.latest(tp)
        assert [] == list((await read_committed(storage, tp, start)).aborted)
        await storage.compact(tp)
        assert [b"plain", b"committed", b"last"] == await committed_values(storage, tp)

    async def test_compaction_keeps_the_aborted_list_of_what_it_has_not_read(
        self, storage: Storage, on_compacted: Client
    ) -> None:
        tp = on_compacted.tp
        other = Client(storage, tp, producer_id=8)
        await on_compacted.send_keyed(b"a", b"aborted")
        first_open = await other.send_keyed(b"b", b"open")
        await on_compacted.send_keyed(b"a", b"aborted too")
        await on_compacted.end(ABORT)
        await append(storage, tp, [Record(b"last", b"c")])
        result = await storage.compact(tp)
        found = await all_values(storage, tp)
        await other.end(COMMIT)

        assert result is not None
        assert result.end == first_open.base_offset
        assert [b"open", b"aborted too", b"last"] == found
        assert [b"open", b"last"] == await committed_values(storage, tp)
        await storage.compact(tp)
        assert [b"open", b"last"] == await committed_values(storage, tp) == await all_values(storage, tp)

    async def test_markers_go_once_their_records_have_gone(
        self, storage: Storage, environment: Environment
    ) -> None:
        """A marker goes with a round that is `delete.retention.ms` after one that has read no record before it."""
        tp = await compacted_topic(storage, environment, {"delete.retention.ms": "0"})
        producer, other = Client(storage, tp), Client(storage, tp, producer_id=8)
        await producer.send_keyed(b"a", b"aborted")
        await producer.end(ABORT)
        await other.send_keyed(b"k", b"kept")
        await other.end(COMMIT)
        counts = [await markers_in(storage, tp)]
        for number in range(3):
            await append(storage, tp, [Record(b"%d" % number, b"x")])
            await storage.compact(tp)
            counts.append(await markers_in(storage, tp))

        assert 2 == counts[0] == counts[1]
        assert 1 == counts[-1]
        assert [b"kept", b"2"] == await committed_values(storage, tp)
        await producer.send_keyed(b"a", b"new")
        await producer.end(COMMIT)
        assert [b"kept", b"2", b"new"] == await committed_values(storage, tp)

    async def test_newest_marker_stays(self, storage: Storage, environment: Environment) -> None:
        tp = await compacted_topic(storage, environment, {"delete.retention.ms": "0"})
        producer = Client(storage, tp)
        await append(storage, tp, [Record(b"plain", b"a")])
        await producer.end(ABORT)
        await append(storage, tp, [Record(b"plain", b"a")])
        bounds = None
        for _ in range(3):
            await producer.end(ABORT)
            bounds = await storage.latest(tp)
            await storage.compact(tp)

        assert 1 <= await markers_in(storage, tp)
        assert bounds == await storage.latest(tp)

    async def test_compaction_of_random_transactions_changes_no_committed_value(
        self, storage: Storage, on_compacted: Client
    ) -> None:
        tp = on_compacted.tp
        chosen = random.Random(28)  # noqa: S311
        clients = [Client(storage, tp, producer_id=7 + number, version=1 + number % 2) for number in range(4)]
        latest: dict[bytes, bytes] = {}
        pending: dict[int, dict[bytes, bytes]] = {each.producer_id: {} for each in clients}
        for number in range(150):
            client = chosen.choice(clients)
            key, value = b"k%d" % chosen.randrange(8), b"%d" % number
            if chosen.random() < 0.6:
                await client.send_keyed(key, value)
                pending[client.producer_id][key] = value
            elif pending[client.producer_id]:
                result = chosen.choice([COMMIT, ABORT])
                await client.end(result)
                if result is COMMIT:
                    # Compaction keeps the last offset of a key, which may be before that of a later commit.
                    latest |= pending[client.producer_id]
                pending[client.producer_id] = {}
            if number % 25 == 24:
                await storage.compact(tp)
        for client in clients:
            await client.end(ABORT)
        before = await committed_values(storage, tp)
        await append(storage, tp, [Record(b"end", b"end")])
        await storage.compact(tp)
        after = await committed_values(storage, tp)

        assert after == await all_values(storage, tp)
        assert len(after) == len(latest) + 1
        assert set(after) <= {*before, b"end"}
        assert [value for value in before if value in set(after)] == after[:-1]


async def compacted_topic(
    storage: Storage, environment: Environment, settings: Mapping[str, str] | None = None
) -> TopicPartition:
    """Create a topic of one partition that every call compacts if it has new records."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", **(settings or {})}
    await storage.create_topic("compacted", 1, {**environment.settings, "retention.ms": "-1", **settings})
    return TopicPartition("compacted", 0)


async def markers_in(storage: Storage, tp: TopicPartition) -> int:
    """Return the number of markers in the partition."""
    result = await read(storage, tp, (await storage.latest(tp)).log_start_offset)
    return sum(each.is_control for each in batches_of(result))
